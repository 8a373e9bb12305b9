// The one way in which files are opened for reading.
#pragma once

#include <cstdint>

#include "base/files.h"

namespace oscar {

// A descriptor for reading, and the size. InputError for what cannot be opened and for everything but regular files
// (directories, pipes, devices, sockets), on which it never waits.
int open_regular(const fs::path& path, std::uint64_t* size);

}  // namespace oscar
