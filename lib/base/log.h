// Messages for people, on stderr; results, on stdout. Both pass through escape_text() (foreign_text.h), so that no name
// or text of a file reaches a terminal raw.
#pragma once

#include <string>

namespace oscar {

enum class LogLevel { kErrors = -1, kQuiet = 0, kNormal = 1, kVerbose = 2 };

void set_log_level(LogLevel level);
LogLevel log_level();
// A message is one line: a newline in it is escaped, too.
void log_info(const std::string& message);     // normal and verbose
void log_detail(const std::string& message);   // verbose only
void log_warning(const std::string& message);  // also when quiet, not with kErrors; prefixed "warning: "
void log_error(const std::string& message);    // always; prefixed "error: "

// Text of any number of lines, or JSON, to stdout; ferror(stdout) tells whether it arrived.
void print_result(const std::string& text);   // what was asked for: always
void print_summary(const std::string& text);  // what a run that writes files says about itself: not when quiet

bool stderr_is_terminal();
bool use_color();  // a terminal, and NO_COLOR unset (no-color.org)

}  // namespace oscar
