// A number as text, for the tables and messages of the commands.
#pragma once

#include <cstdio>
#include <string>

namespace oscar {

// format: of printf, for one double; at most 63 characters of text.
inline std::string number(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace oscar
