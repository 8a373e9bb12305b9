#include "base/shell.h"

#include "base/foreign_text.h"
#include "base/formatted.h"

namespace oscar {

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  const bool coded = escape_text(text) != text;
  std::string word = coded ? "$'" : "'";
  for (const char c : text) {
    const bool printable = c >= 0x20 && c < 0x7F;
    if (coded && !printable) {
      word += formatted("\\x%02x", static_cast<unsigned char>(c));
    } else if (coded && (c == '\'' || c == '\\')) {
      word += {'\\', c};
    } else {
      word += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
  }
  return word + "'";
}

std::string shell_command(const std::vector<std::string>& arguments) {
  std::string command;
  for (const std::string& argument : arguments) command += (command.empty() ? "" : " ") + shell_word(argument);
  return command;
}

}  // namespace oscar
