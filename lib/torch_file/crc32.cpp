#include "torch_file/crc32.h"

#include <array>

namespace oscar {
namespace {

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

// Row k advances a byte by k further bytes, so that eight bytes are folded at once.
constexpr Table make_table() {
  Table table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
    table[0][i] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t i = 0; i < 256; ++i) {
      table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 255u];
    }
  }
  return table;
}
constexpr Table kTable = make_table();

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~0u;
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(bytes[i]); };
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const std::uint32_t low = crc ^ (at(i) | at(i + 1) << 8 | at(i + 2) << 16 | at(i + 3) << 24);
    crc = kTable[7][low & 255u] ^ kTable[6][(low >> 8) & 255u] ^ kTable[5][(low >> 16) & 255u] ^ kTable[4][low >> 24] ^
          kTable[3][at(i + 4)] ^ kTable[2][at(i + 5)] ^ kTable[1][at(i + 6)] ^ kTable[0][at(i + 7)];
  }
  for (; i < bytes.size(); ++i) crc = (crc >> 8) ^ kTable[0][(crc ^ at(i)) & 255u];
  return ~crc;
}

}  // namespace oscar
