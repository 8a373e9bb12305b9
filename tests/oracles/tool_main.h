// What the small tools of these tests share.
#pragma once

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "base/errors.h"

namespace oscar {

using Arguments = std::vector<std::string>;

// For each argument but the first, which names the command: prints what `read` returns for the file, or why it is
// refused.
template <typename Read>
void print_each(const Arguments& arguments, const Read& read) {
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    try {
      std::cout << read(arguments[i]) << "\n";
    } catch (const InputError& e) {
      std::cout << "refused: " << e.what() << "\n";
    }
  }
}

// The exit code of a tool: that of run(arguments), or of its error, which is printed.
template <typename Run>
int tool_main(int argc, char** argv, const Run& run) {
  try {
    return run(Arguments(argv + 1, argv + argc));
  } catch (const Error& e) {
    std::cerr << e.what() << "\n";
    return static_cast<int>(e.code());
  }
}

}  // namespace oscar
