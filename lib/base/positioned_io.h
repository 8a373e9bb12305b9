// Reads and writes complete ranges of an open file, with as many calls as needed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar {

// False, with errno set, if not all bytes could be written or read.
bool write_at(int fd, const void* data, std::size_t bytes, std::uint64_t offset);
bool read_at(int fd, void* data, std::size_t bytes, std::uint64_t offset);

}  // namespace oscar
