// Common code of the writers of golden files: bytes as text, and a main function.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iostream>
#include <string>

#include "base/errors.h"

namespace oscar {

inline std::string hex(const void* data, std::size_t bytes) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto b = static_cast<const unsigned char*>(data)[i];
    text += digits[b >> 4], text += digits[b & 15];
  }
  return text;
}

// Calls write(path) with the only argument; the exit codes are the commands'.
inline int run_writer(int argc, char** argv, const char* usage, void (*write)(const std::filesystem::path&)) {
  if (argc != 2) {
    std::cerr << "usage: " << usage << "\n";
    return 2;
  }
  try {
    write(argv[1]);
  } catch (const Error& e) {
    std::cerr << "error: " << e.what() << "\n";
    return static_cast<int>(e.code());
  }
  return 0;
}

}  // namespace oscar
