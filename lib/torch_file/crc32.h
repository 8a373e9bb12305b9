// CRC-32 of zip files (ISO 3309: reflected polynomial 0xEDB88320), by zlib.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace oscar {

inline std::uint32_t crc32(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace oscar
