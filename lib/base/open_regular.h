// The only way in which this project opens files for reading.
#pragma once

#include <cstdint>

#include "base/files.h"

namespace oscar {

// Returns a read descriptor and the size. InputError when the file cannot be opened or is not regular (directory, pipe,
// device, socket). Never waits on such files.
int open_regular(const fs::path& path, std::uint64_t* size, Links links = Links::kFollow);

}  // namespace oscar
