// README.md of a bundle: a model card with a YAML head, only facts, at most 80 lines.
#pragma once

#include <string>

#include "bundle/bundle.h"

namespace oscar {

// The YAML head and the sections that all cards of this project share.
std::string card_head(const Bundle& bundle, const std::string& title);
std::string bundle_card(const Bundle& bundle);
// "## Provenance": tool, statistics, prompt sets, options, one line each; empty if nothing is recorded.
std::string provenance_section(const Bundle& bundle);

// Bits per element of a quantized token: 2 bits, and two 16-bit parameters per group.
double bundle_bits_per_element(const Bundle& bundle);

}  // namespace oscar
