// What the reader of --config lets pass: arrays that do not end, or that lie in arrays.
#pragma once

#include <string>
#include <string_view>

namespace oscar {

// The first such fault, "line 3: the array of 'prompts' is not closed"; empty where there is none.
std::string config_fault(std::string_view text);

}  // namespace oscar
