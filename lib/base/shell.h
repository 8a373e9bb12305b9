// Words and commands for a POSIX shell, for text that the user can paste ("resume with: ...", serve commands).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// One word, unquoted if no shell would change it, otherwise in single quotes. A word with characters that escape_text()
// (foreign_text.h) would change becomes $'...', which bash, zsh and ksh read.
std::string shell_word(std::string_view text);

// Joins the arguments into one command.
std::string shell_command(const std::vector<std::string>& arguments);

}  // namespace oscar
