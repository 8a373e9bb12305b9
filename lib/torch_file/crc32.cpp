#include "torch_file/crc32.h"

#include <zlib.h>

namespace oscar {

std::uint32_t crc32(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace oscar
