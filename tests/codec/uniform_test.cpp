#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "codec/codec.h"
#include "codec/row_math.h"
#include "codec/rows.h"
#include "layout/float16.h"
#include "support/bfloat16.h"
#include "support/encoded_row.h"

namespace oscar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

RowCodec codec_of(int d, int group = 0, ParamType params = ParamType::kFloat16) {
  return {.code = uniform_code(d, group, params)};
}

TEST(Uniform, ZeroRowStaysZero) {
  for (const auto type : {ParamType::kFloat16, ParamType::kBFloat16}) {
    for (const auto encoder : {Encoder::kMinMax, Encoder::kSearch}) {
      for (const float zero : {0.0f, -0.0f}) {
        RowCodec codec = codec_of(128, 0, type);
        codec.encoder = encoder;
        const std::vector<float> row(128, zero), back = quantized(codec, row);
        for (const float v : back) ASSERT_EQ(v, 0.0f);
      }
    }
  }
}

TEST(Uniform, ConstantRowIsExactWhenTheTypeHoldsIt) {
  for (const float c : {5.0f, -5.0f, 1.0f, 0.001953125f, -208.0f, 49152.0f}) {
    for (const auto type : {ParamType::kFloat16, ParamType::kBFloat16}) {
      for (const auto encoder : {Encoder::kMinMax, Encoder::kSearch}) {
        RowCodec codec = codec_of(64, 32, type);
        codec.encoder = encoder;
        const std::vector<float> row(64, c);
        EXPECT_EQ(quantized(codec, row), row) << c;
      }
    }
  }
}

TEST(Uniform, RowsOnFourLevelsAreExact) {
  // x = (q - z) s with s and z that 16 bits hold and all four codes present.
  for (const auto& [s, z] : {std::pair{0.5f, 1.5f}, {0.125f, 0.25f}, {2.0f, -3.0f}, {1.0f, 1.0f}}) {
    std::vector<float> row(128);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = (static_cast<float>((i * 7 + i / 5) % 4) - z) * s;
    const EncodedRow e = encode_row(row, uniform_code(128));
    EXPECT_EQ(e.scale[0], s);
    EXPECT_EQ(e.zero[0], z);
    for (std::size_t i = 0; i < row.size(); ++i) EXPECT_EQ(e.codes[i], (i * 7 + i / 5) % 4);
    EXPECT_EQ(quantized(codec_of(128), row), row);
    for (const Side side : {Side::kKey, Side::kValue}) {  // the search encoder finds the same row
      RowCodec search = codec_of(128);
      search.encoder = Encoder::kSearch, search.side = side;
      const std::vector<float> back = quantized(search, row);
      for (std::size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(back[i], row[i], 2e-3f * s);
    }
  }
}

TEST(Uniform, TwoLevelRow) {
  std::vector<float> row(64);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = i % 3 == 0 ? -1.0f : 2.0f;
  const EncodedRow e = encode_row(row, uniform_code(64));
  EXPECT_EQ(e.scale[0], 1.0f);
  EXPECT_EQ(e.zero[0], 1.0f);
  for (std::size_t i = 0; i < row.size(); ++i) EXPECT_EQ(e.codes[i], i % 3 == 0 ? 0 : 3);
  EXPECT_EQ(quantized(codec_of(64), row), row);
}

TEST(Uniform, ErrorIsAtMostHalfAStep) {
  for (const auto& [d, group] : {std::pair{128, 128}, {128, 32}, {80, 16}, {96, 96}, {64, 64}, {256, 128}, {4, 4}}) {
    for (const auto type : {ParamType::kFloat16, ParamType::kBFloat16}) {
      const RowCode code = uniform_code(d, group, type);
      // The stored s and z are off by half a unit of their last place: up to 3 s and z each move by that share.
      const float share = type == ParamType::kFloat16 ? 0x1p-11f : 0x1p-8f;
      for (const float mean : {0.0f, 3.0f, -20.0f}) {
        const std::vector<float> rows = gaussian_rows(7, 50, d, mean);
        for (int r = 0; r < 50; ++r) {
          const std::span<const float> row(rows.data() + r * d, static_cast<std::size_t>(d));
          const EncodedRow e = encode_row(row, code);
          std::vector<float> back(static_cast<std::size_t>(d));
          decode_row(e, code, back);
          for (int i = 0; i < d; ++i) {
            const float s = e.scale[static_cast<std::size_t>(i / group)];
            const float z = e.zero[static_cast<std::size_t>(i / group)];
            ASSERT_LE(e.codes[static_cast<std::size_t>(i)], 3);
            ASSERT_LE(std::fabs(row[static_cast<std::size_t>(i)] - back[static_cast<std::size_t>(i)]),
                      s * (0.5f + share * (std::fabs(z) + 4.0f)))
                << "d " << d << " group " << group << " mean " << mean;
          }
        }
      }
    }
  }
}

// Independent Gaussian rows, d = 128: known errors of the quantizer, sampling error below 1 %.
TEST(Uniform, GaussianAnchors) {
  const std::vector<float> rows = gaussian_rows(3, 4000, 128);
  const auto check = [&](RowCodec codec, double relative_mse, double gain) {
    const ErrorStats e = error_of(rows, quantized(codec, rows));
    EXPECT_NEAR(e.relative_mse, relative_mse, 0.02 * relative_mse);
    EXPECT_NEAR(e.gain, gain, 0.004);
  };
  check(codec_of(128, 32), 0.154, 1.015);
  check(codec_of(128, 64), 0.203, 1.013);
  RowCodec codec = codec_of(128);
  check(codec, 0.251, 1.010);
  for (const auto& [clip, mse, gain] :
       {std::tuple{0.98f, 0.197, 0.996}, {0.96f, 0.156, 0.975}, {0.92f, 0.127, 0.939}, {0.84f, 0.119, 0.859}}) {
    codec.clip = clip;
    check(codec, mse, gain);
  }
}

TEST(Uniform, SearchIsUnbiasedForKeysAndLeastSquaresForValues) {
  const std::vector<float> rows = gaussian_rows(11, 2000, 128);
  RowCodec codec = codec_of(128);
  const double plain = error_of(rows, quantized(codec, rows)).relative_mse;
  codec.encoder = Encoder::kSearch;
  const ErrorStats key = error_of(rows, quantized(codec, rows));
  EXPECT_NEAR(key.gain, 1.0, 1e-3);
  EXPECT_LT(key.relative_mse, 0.6 * plain);
  codec.side = Side::kValue;
  const ErrorStats value = error_of(rows, quantized(codec, rows));
  EXPECT_LT(value.relative_mse, key.relative_mse);
  EXPECT_LT(value.relative_mse, 0.1188 + 0.002);            // no worse than the best fixed uniform step
  EXPECT_NEAR(value.gain, 1.0 - value.relative_mse, 2e-3);  // the error is orthogonal to the reconstruction
}

void clip_row(std::vector<float>& row, float rho) {
  const std::vector<float> given = row;
  std::vector<std::uint32_t> scratch(row.size());
  ASSERT_TRUE(row_math::load_clipped(given.data(), static_cast<int>(row.size()), rho, scratch.data(), row.data()));
}

TEST(Uniform, ClipTakesTheOrderStatistic) {
  std::vector<float> row(128);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i + 1) * (i % 2 == 0 ? 1.0f : -1.0f);
  for (const auto& [rho, threshold] : {std::pair{0.96f, 123.0f},
                                       {0.92f, 118.0f},
                                       {0.5f, 65.0f},
                                       {0.999f, 128.0f},
                                       {0.001f, 1.0f},
                                       {0.0f, 128.0f},
                                       {1.0f, 128.0f},
                                       {-1.0f, 128.0f}}) {
    std::vector<float> clipped = row;
    clip_row(clipped, rho);
    for (std::size_t i = 0; i < row.size(); ++i) {
      ASSERT_EQ(clipped[i], std::clamp(row[i], -threshold, threshold)) << rho;
    }
  }
  std::vector<float> eighty(80, 1.0f);  // int(0.95 * 80) is 76 in single precision: the four largest are clipped
  for (std::size_t i = 0; i < 5; ++i) eighty[i] = 10.0f + static_cast<float>(i);
  clip_row(eighty, 0.95f);
  EXPECT_EQ(*std::max_element(eighty.begin(), eighty.end()), 11.0f);
}

TEST(Uniform, ClipAgreesWithSortingOnFloatsAndOnBfloat16) {
  for (const int d : {64, 80, 96, 128, 256}) {
    for (int r = 0; r < 40; ++r) {
      std::vector<float> row(static_cast<std::size_t>(d));
      for (int i = 0; i < d; ++i) {
        const float v = gaussian(static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(i));
        row[static_cast<std::size_t>(i)] = r % 2 == 0 ? v : round_to_bfloat16(v);
      }
      const float rho = static_cast<float>(r + 1) / 41.0f;
      std::vector<float> sorted(row), clipped(row);
      for (float& v : sorted) v = std::fabs(v);
      std::sort(sorted.begin(), sorted.end());
      const int index = std::min(static_cast<int>(rho * static_cast<float>(d)), d - 1);
      const float t = sorted[static_cast<std::size_t>(index)];
      clip_row(clipped, rho);
      for (std::size_t i = 0; i < row.size(); ++i) ASSERT_EQ(clipped[i], std::clamp(row[i], -t, t));
    }
  }
}

TEST(Uniform, NonFiniteRowsAreRefusedByName) {
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    for (const float clip : {0.0f, 0.92f}) {
      std::vector<float> rows = gaussian_rows(1, 20, 64);
      rows[17 * 64 + 5] = bad;
      RowCodec codec = codec_of(64);
      codec.clip = clip;
      try {
        quantized(codec, rows);
        FAIL() << "no NumericalError";
      } catch (const NumericalError& e) {
        EXPECT_THAT(e.what(), testing::HasSubstr("row 17"));
        EXPECT_THAT(e.what(), testing::HasSubstr("channel 5"));
      }
    }
  }
}

// Magnitudes at both ends of FP32: finite parameters, codes in range, finite reconstruction.
TEST(Uniform, ExtremeMagnitudesStayFinite) {
  for (const float size : {1e-45f, 1e-40f, 1e-20f, 1e-9f, 1e-7f, 1e-4f, 1e4f, 1e5f, 1e8f, 1e20f, 3e38f}) {
    for (const float mean : {0.0f, 1.0f, -1.0f}) {
      for (const auto type : {ParamType::kFloat16, ParamType::kBFloat16}) {
        for (const auto encoder : {Encoder::kMinMax, Encoder::kSearch}) {
          for (const float clip : {0.0f, 0.9f}) {
            RowCodec codec{uniform_code(128, 0, type), Side::kKey, encoder, clip};
            std::vector<float> row(128);
            for (std::size_t i = 0; i < row.size(); ++i) {
              row[i] = size * std::clamp(mean * 0.5f + 0.2f * gaussian(5, i), -1.0f, 1.0f);
            }
            const float largest = std::fabs(*std::max_element(
                row.begin(), row.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
            for (const float v : quantized(codec, row)) {
              ASSERT_TRUE(std::isfinite(v)) << size;
              ASSERT_LE(std::fabs(v), 2.0f * std::max(largest, 1e-7f)) << size << " " << mean;
            }
          }
        }
      }
    }
  }
}

// Why FP16 is the default type of s and z: at z = 200 its zero point is eight times finer than BF16's, so that the
// ends of the range are not cut.
TEST(Uniform, OffsetRowsFavorFloat16Parameters) {
  const auto worst = [](ParamType type) {  // largest error in steps
    float worst = 0.0f;
    for (std::uint64_t r = 0; r < 200; ++r) {
      std::vector<float> row(128), back(128);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = 400.0f + gaussian(13 + r, i);
      const EncodedRow e = encode_row(row, uniform_code(128, 0, type));
      decode_row(e, uniform_code(128, 0, type), back);
      for (std::size_t i = 0; i < row.size(); ++i) worst = std::max(worst, std::fabs(row[i] - back[i]) / e.scale[0]);
    }
    return worst;
  };
  EXPECT_LT(worst(ParamType::kFloat16), 0.65f);
  EXPECT_GT(worst(ParamType::kBFloat16), 0.9f);
}

TEST(Uniform, StridesAndAliasing) {
  const std::vector<float> rows = gaussian_rows(17, 6, 128);  // as [3 tokens, 2 heads, 64 dims] x 2
  const RowCodec codec = codec_of(64);
  std::vector<float> strided(rows), dense;
  for (int t = 0; t < 6; ++t) dense.insert(dense.end(), rows.begin() + t * 128, rows.begin() + t * 128 + 64);
  const std::vector<float> expected = quantized(codec, dense);
  quantize_rows(codec, strided.data(), 6, 128, strided.data(), 128);
  for (int t = 0; t < 6; ++t) {
    for (int i = 0; i < 128; ++i) {
      const auto at = static_cast<std::size_t>(t * 128 + i);
      ASSERT_EQ(strided[at], i < 64 ? expected[static_cast<std::size_t>(t * 64 + i)] : rows[at]);
    }
  }
}

TEST(Uniform, BatchFunctionsAgreeWithRowFunctions) {
  const std::vector<float> rows = gaussian_rows(19, 9, 96, 0.5f);
  const RowCodec codec{uniform_code(96, 32), Side::kValue, Encoder::kMinMax, 0.92f};
  std::vector<std::uint8_t> codes(9 * 96), params(9 * 12);
  encode_rows(codec, rows.data(), 9, 0, codes.data(), params.data());
  const std::vector<float> back = quantized(codec, rows);
  for (int r = 0; r < 9; ++r) {
    const EncodedRow e = encode_row({rows.data() + r * 96, 96}, codec.code, codec.clip);
    std::vector<float> row(96);
    decode_row(e, codec.code, row);
    for (std::size_t i = 0; i < 96; ++i) {
      ASSERT_EQ(e.codes[i], codes[static_cast<std::size_t>(r) * 96 + i]);
      ASSERT_EQ(row[i], back[static_cast<std::size_t>(r) * 96 + i]);
    }
  }
}

TEST(RowCode, SizesAndValidation) {
  EXPECT_DOUBLE_EQ(uniform_code(128).bits_per_element(), 2.25);
  EXPECT_DOUBLE_EQ(uniform_code(128, 32).bits_per_element(), 3.0);
  EXPECT_DOUBLE_EQ(uniform_code(64).bits_per_element(), 2.5);
  EXPECT_DOUBLE_EQ(band_code(128, {4, 2, 1, 1}).bits_per_element(), 2.25);
  EXPECT_DOUBLE_EQ(band_code(128, {2, 1, 0, 0}).bits_per_element(), 0.875);
  EXPECT_THROW(uniform_code(128, 48), InputError);
  EXPECT_THROW(uniform_code(0), InputError);
  EXPECT_THROW(uniform_code(2048), InputError);
  EXPECT_THROW(uniform_code(126), InputError);
  EXPECT_THROW(band_code(128, {3, 2, 1, 1}), InputError);
  EXPECT_THROW(band_code(80, {2, 2, 1, 1}), InputError);
  EXPECT_THROW(parse_encoder("best"), InputError);
  EXPECT_EQ(parse_encoder(to_string(Encoder::kSearch)), Encoder::kSearch);
}

}  // namespace
}  // namespace oscar
