// README.md of a bundle: a model card with YAML head, facts only, at most 80 lines.
#pragma once

#include <string>

#include "bundle/bundle.h"

namespace oscar {

// The YAML head and the sections every card of this project shares.
std::string card_head(const Bundle& bundle, const std::string& title);
std::string bundle_card(const Bundle& bundle);
// "## Provenance": tool, statistics, prompt sets, options, a line each; empty where nothing is recorded.
std::string provenance_section(const Bundle& bundle);

// Bits per element of a quantized token: 2 bits and two 16-bit parameters for each group.
double bundle_bits_per_element(const Bundle& bundle);

}  // namespace oscar
