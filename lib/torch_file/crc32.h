// CRC-32 of zip files (ISO 3309: reflected polynomial 0xEDB88320).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace oscar {

std::uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace oscar
