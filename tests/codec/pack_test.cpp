#include <gtest/gtest.h>

#include <numeric>

#include "codec/rows.h"
#include "tests/golden/interchange_codes.h"

namespace oscar {
namespace {

TEST(Pack, QuarteredBytesOfTheInterchangeView) {
  std::vector<std::uint8_t> codes{0, 1, 2, 3, 3, 2, 1, 0},
      bytes(2);  // d = 8: byte b holds q[b], q[b+2], q[b+4], q[b+6]
  pack_codes(uniform_code(8), codes, bytes);
  EXPECT_EQ(bytes[0], 0 | 2 << 2 | 3 << 4 | 1 << 6);
  EXPECT_EQ(bytes[1], 1 | 3 << 2 | 2 << 4 | 0 << 6);
}

TEST(Pack, EveryByteOfTheUniformLayoutUnpacksAndPacks) {
  std::vector<std::uint8_t> bytes(256), codes(1024), back(256);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  const RowCode code = uniform_code(1024);
  unpack_codes(code, bytes, codes);
  for (const std::uint8_t c : codes) ASSERT_LE(c, 3);
  pack_codes(code, codes, back);
  EXPECT_EQ(back, bytes);
}

TEST(Pack, BlocksAreABijection) {
  for (const auto& widths : {std::array<std::uint8_t, 4>{4, 2, 1, 1}, {4, 4, 4, 4}, {1, 0, 2, 4}, {0, 0, 0, 1}}) {
    const RowCode code = band_code(96, widths);
    std::vector<std::uint8_t> codes(96), back(96, 9), bytes(static_cast<std::size_t>(code.code_bytes()), 0xff);
    for (std::size_t i = 0; i < 96; ++i) {
      codes[i] = static_cast<std::uint8_t>(random_bits(1, 2, i) & ((1u << widths[i / 24]) - 1u));
    }
    pack_codes(code, codes, bytes);
    unpack_codes(code, bytes, back);
    EXPECT_EQ(back, codes);
  }
}

TEST(Pack, LowChannelsOfABlockComeFirst) {
  std::vector<std::uint8_t> codes(32, 0), bytes(16);
  codes[0] = 0x3, codes[1] = 0xa;
  pack_codes(band_code(32, {4, 4, 4, 4}), codes, bytes);
  EXPECT_EQ(bytes[0], 0xa3);
}

}  // namespace
}  // namespace oscar
