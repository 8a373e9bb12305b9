#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "codec/layouts.h"
#include "codec/rows.h"

namespace oscar {
namespace {

RowCodec codec_of(int d, std::uint8_t w, Side side, Encoder encoder = Encoder::kSearch) {
  return {.code = band_code(d, {w, w, w, w}), .side = side, .encoder = encoder};
}

TEST(Blocks, ScaleBytesAreAGrid) {
  for (int e = -128; e <= 127; ++e) {
    const float value = blocks::scale_value(static_cast<std::int8_t>(e), 1.0f);
    EXPECT_NEAR(std::log2(value) * 32.0, e, 1e-4);
    EXPECT_EQ(blocks::scale_byte(value), e);
    EXPECT_FLOAT_EQ(blocks::scale_value(static_cast<std::int8_t>(e), 0.37f), 0.37f * value);
    if (e == 127) continue;
    const float middle = std::exp2((static_cast<float>(e) + 0.5f) / 32.0f);
    EXPECT_EQ(blocks::scale_byte(middle * 0.9999f), e);
    EXPECT_EQ(blocks::scale_byte(middle * 1.0001f), e + 1);
  }
  EXPECT_EQ(blocks::scale_byte(0.0f), -128);
  EXPECT_EQ(blocks::scale_byte(std::nanf("")), -128);
  EXPECT_EQ(blocks::scale_byte(1e30f), 127);
  EXPECT_EQ(blocks::scale_value(32, 3.0f), 6.0f);
  EXPECT_EQ(blocks::scale_value(0, 3.0f), 3.0f);
}

// Long blocks of Gaussian numbers reach the known distortions: one bit pi/2 - 1 without bias and 1 - 2/pi by least
// squares; two and four bits near those of the best uniform quantizers.
TEST(Blocks, GaussianDistortions) {
  const std::vector<float> rows = gaussian_rows(5, 300, 1024);
  const auto check = [&](std::uint8_t w, Side side, double relative_mse, double share) {
    const ErrorStats e = error_of(rows, quantized(codec_of(1024, w, side), rows));
    EXPECT_NEAR(e.relative_mse, relative_mse, share * relative_mse) << int{w};
    EXPECT_NEAR(e.gain, side == Side::kKey ? 1.0 : 1.0 - e.relative_mse, 3e-3) << int{w};
  };
  check(1, Side::kKey, 0.5708, 0.01);
  check(1, Side::kValue, 0.3634, 0.01);
  check(2, Side::kKey, 0.133, 0.03);
  check(2, Side::kValue, 0.118, 0.03);
  check(4, Side::kKey, 0.0115, 0.12);
  check(4, Side::kValue, 0.0115, 0.12);
}

TEST(Blocks, WidthZeroReadsZeroAndStoresNothing) {
  const RowCodec codec{.code = band_code(64, {2, 0, 1, 0}), .side = Side::kValue};
  EXPECT_EQ(codec.code.param_bytes(), 2);
  EXPECT_EQ(codec.code.code_bytes(), 6);
  const std::vector<float> row = gaussian_rows(6, 1, 64), back = quantized(codec, row);
  for (std::size_t i = 0; i < 64; ++i) {
    if (i / 16 == 1 || i / 16 == 3) {
      EXPECT_EQ(back[i], 0.0f);
    } else {
      EXPECT_GT(back[i] * row[i], 0.0f);
    }
  }
}

// Rows whose first block is on the levels of two codes, one 32 times as fine as the other.
TEST(Blocks, ARefinedCodeReadsBothInTheFirstBlock) {
  RowCodec codec{
      .code = band_code(64, {4, 2, 0, 4}, true), .side = Side::kValue, .sigma = {1.0f, 1.0f, 1.0f, 1 / 32.0f}};
  EXPECT_EQ(codec.code.param_bytes(), 3);
  std::vector<float> row(64, 3.0f);
  for (std::size_t i = 0; i < 16; ++i) {
    row[i] = (static_cast<float>(i) - 7.5f) * 0.5f + (static_cast<float>(i * 7 % 16) - 7.5f) / 64.0f;
  }
  const std::vector<float> back = quantized(codec, row);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(back[i], row[i]) << i;
  for (std::size_t i = 16; i < 32; ++i) EXPECT_GT(back[i], 0.0f);
  for (std::size_t i = 32; i < 64; ++i) EXPECT_EQ(back[i], 0.0f);
  codec.code.widths[3] = 0;
  EXPECT_THROW(quantized(codec, row), InputError);
  EXPECT_THROW(band_code(64, {0, 2, 0, 4}, true), InputError);
}

TEST(Blocks, RowsOnLevelsAreExact) {
  for (const std::uint8_t w : {1, 2, 4}) {
    std::vector<float> row(128);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const int code = static_cast<int>((i * 5 + i / 7) % (1u << w));
      row[i] = (static_cast<float>(code) + 0.5f - 0.5f * static_cast<float>(1 << w)) * 0.5f;  // s = 2^(-32/32)
    }
    for (const Side side : {Side::kKey, Side::kValue}) EXPECT_EQ(quantized(codec_of(128, w, side), row), row) << int{w};
  }
}

TEST(Blocks, SearchIsNoWorseThanTheFullRange) {
  const std::vector<float> rows = gaussian_rows(7, 500, 128);
  for (const std::uint8_t w : {2, 4}) {
    EXPECT_LT(error_of(rows, quantized(codec_of(128, w, Side::kValue), rows)).relative_mse,
              error_of(rows, quantized(codec_of(128, w, Side::kValue, Encoder::kMinMax), rows)).relative_mse);
  }
}

TEST(Blocks, ExtremeMagnitudesStayFinite) {
  for (const float size : {0.0f, 1e-45f, 1e-20f, 1e-6f, 1e6f, 1e20f, 3e38f}) {
    for (const std::uint8_t w : {1, 2, 4}) {
      std::vector<float> row(64);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = size * (i % 2 == 0 ? 1.0f : -0.5f);
      for (const float v : quantized(codec_of(64, w, Side::kKey), row)) ASSERT_TRUE(std::isfinite(v)) << size;
    }
  }
}

TEST(Blocks, NonFiniteRowsAreRefused) {
  std::vector<float> row = gaussian_rows(8, 1, 64);
  row[60] = std::nanf("");
  EXPECT_THROW(quantized(codec_of(64, 0, Side::kKey), row), NumericalError);  // even where nothing is stored
}

}  // namespace
}  // namespace oscar
