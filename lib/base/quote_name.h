// Names that come from a file, made safe for a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace oscar {

// 'name' in single quotes; control characters and bytes outside ASCII text as \xNN, cut after 80 bytes.
std::string quote_name(std::string_view name);

}  // namespace oscar
