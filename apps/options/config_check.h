// Faults that the reader of --config accepts: arrays and quoted texts that do not end, and nested arrays.
#pragma once

#include <string>
#include <string_view>

namespace oscar {

// The first such fault, "line 3: the array of 'prompts' is not closed"; empty if there is none.
std::string config_fault(std::string_view text);

}  // namespace oscar
