#include "base/log.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/foreign_text.h"

namespace oscar {
namespace {
LogLevel g_level = LogLevel::kNormal;

void print(const char* color, const char* prefix, const std::string& text) {
  const std::string message = escape_text(text);
  // "\r\033[K" clears a progress bar on the current line.
  const char* clear = stderr_is_terminal() ? "\r\033[K" : "";
  if (use_color() && *color != '\0') {
    std::fprintf(stderr, "%s%s%s\033[0m%s\n", clear, color, prefix, message.c_str());
  } else {
    std::fprintf(stderr, "%s%s%s\n", clear, prefix, message.c_str());
  }
}
}  // namespace

void set_log_level(LogLevel level) { g_level = level; }
LogLevel log_level() { return g_level; }
void log_info(const std::string& message) {
  if (g_level >= LogLevel::kNormal) print("", "", message);
}
void log_detail(const std::string& message) {
  if (g_level >= LogLevel::kVerbose) print("", "", message);
}
void log_warning(const std::string& message) {
  if (g_level >= LogLevel::kQuiet) print("\033[33m", "warning: ", message);
}
void log_error(const std::string& message) { print("\033[31m", "error: ", message); }

void print_result(const std::string& text) {
  const std::string safe = escape_text(text, Lines::kMany);
  std::fwrite(safe.data(), 1, safe.size(), stdout);
}
void print_summary(const std::string& text) {
  if (g_level >= LogLevel::kNormal) print_result(text);
}

bool stderr_is_terminal() {
  static const bool terminal = [] {
    const char* kind = std::getenv("TERM");
    return ::isatty(2) == 1 && (kind == nullptr || std::string_view(kind) != "dumb");
  }();
  return terminal;
}
bool use_color() {
  static const bool color = [] {
    const char* no_color = std::getenv("NO_COLOR");
    return stderr_is_terminal() && (no_color == nullptr || *no_color == '\0');
  }();
  return color;
}

}  // namespace oscar
