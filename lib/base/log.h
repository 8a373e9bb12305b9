// Messages for people, on stderr. stdout belongs to results.
#pragma once

#include <string>

namespace oscar {

enum class LogLevel { kQuiet = 0, kNormal = 1, kVerbose = 2 };

void set_log_level(LogLevel level);
LogLevel log_level();
void log_info(const std::string& message);     // normal and verbose
void log_detail(const std::string& message);   // verbose only
void log_warning(const std::string& message);  // always; prefixed "warning: "
void log_error(const std::string& message);    // always; prefixed "error: "

bool stderr_is_terminal();
bool use_colour();  // a terminal, and NO_COLOR unset (no-color.org)

}  // namespace oscar
