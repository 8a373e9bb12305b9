// Messages for people go to stderr, results to stdout. Both pass through escape_text() (foreign_text.h), so names and
// text of files never reach a terminal raw.
#pragma once

#include <string>

namespace oscar {

enum class LogLevel { kErrors = -1, kQuiet = 0, kNormal = 1, kVerbose = 2 };

void set_log_level(LogLevel level);
LogLevel log_level();
// A message is one line; newlines in it are escaped.
void log_info(const std::string& message);     // normal and verbose
void log_detail(const std::string& message);   // verbose only
void log_warning(const std::string& message);  // also when quiet, but not with kErrors; prefixed "warning: "
void log_error(const std::string& message);    // always; prefixed "error: "

// Writes text of any number of lines, or JSON, to stdout. ferror(stdout) shows whether writing failed.
void print_result(const std::string& text);   // the requested result: always shown
void print_summary(const std::string& text);  // a run's own summary: not shown when quiet

bool stderr_is_terminal();  // one that takes control sequences: not with TERM=dumb
bool use_color();           // true on such a terminal when NO_COLOR is unset or empty (no-color.org)

}  // namespace oscar
