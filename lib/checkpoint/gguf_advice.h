// What to do with a GGUF file, which is not read: the line that makes a checkpoint of it.
#pragma once

#include <string>

#include "base/files.h"

namespace oscar {

// Whether it is a file whose name ends in .gguf.
bool is_gguf_file(const fs::path& path);

// "; convert MODEL.gguf: python3 -c ..." for the first GGUF file of the directory; empty where it has none.
std::string gguf_advice(const fs::path& directory);

// The same of one file.
std::string gguf_file_advice(const fs::path& file);

}  // namespace oscar
