// Opening and reading files by their descriptor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/files.h"

namespace oscar {

// The only way in which this project opens files for reading.

// Returns a read descriptor and the size. InputError when the file cannot be opened or is not regular (directory, pipe,
// device, socket). Never waits on such files.
int open_regular(const fs::path& path, std::uint64_t* size, Links links = Links::kFollow);

// Reads and writes complete ranges of an open file, with as many calls as needed.

// False, with errno set, if not all bytes could be written or read.
bool write_at(int fd, const void* data, std::size_t bytes, std::uint64_t offset);
bool read_at(int fd, void* data, std::size_t bytes, std::uint64_t offset);

}  // namespace oscar
