// Text by a format of printf, of any length. Programs here never call setlocale, so numbers have a decimal point.
#pragma once

#include <string>

namespace oscar {

[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);

}  // namespace oscar
