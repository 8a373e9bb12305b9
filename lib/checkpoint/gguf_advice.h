// GGUF files are not supported. This gives the command that converts one to a checkpoint.
#pragma once

#include <string>

#include "base/files.h"

namespace oscar {

// Whether it is a file with a name that ends in .gguf, or that begins as GGUF does.
bool is_gguf_file(const fs::path& path);

// "; convert MODEL.gguf: python3 -c ..." for the first GGUF file of the directory; empty if there is none.
std::string gguf_advice(const fs::path& directory);

// The same for one file.
std::string gguf_file_advice(const fs::path& file);

}  // namespace oscar
