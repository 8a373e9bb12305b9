// Words and commands for a POSIX shell: what is printed to be pasted ("resume with: ...", serve commands).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// One word: as it is where no shell would change it, else in single quotes; with characters that escape_text()
// (foreign_text.h) would change as $'...', which bash, zsh and ksh read.
std::string shell_word(std::string_view text);

// The arguments as one command.
std::string shell_command(const std::vector<std::string>& arguments);

}  // namespace oscar
