// Checks of text that comes from binary files.
#pragma once

#include <string_view>

namespace oscar {

bool is_utf8(std::string_view text);

}  // namespace oscar
