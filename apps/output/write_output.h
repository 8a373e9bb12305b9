#pragma once

#include <string>

#include "base/log.h"
#include "pipeline/common/output_files.h"

namespace oscar {

// Writes the file atomically, or prints to standard output; an empty name does nothing.
inline void write_output(const std::string& file, const std::string& content) {
  if (file == kStandardOutput) {
    print_result(content);
  } else if (!file.empty()) {
    write_file_atomic(file, content);
  }
}

}  // namespace oscar
