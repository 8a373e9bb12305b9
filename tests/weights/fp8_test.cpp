// FP8: known codes, every shape of scale against plain loops, hostile tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "weights/weights_fixture.h"

namespace oscar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

at::Tensor fp8(at::Tensor bytes) { return bytes.to(at::kByte).view(at::kFloat8_e4m3fn); }

// E4M3 by its definition: sign, four bits of exponent with bias 7, three of mantissa, subnormal at exponent 0.
float e4m3(std::int64_t byte) {
  const auto exponent = static_cast<int>(byte >> 3 & 15), mantissa = static_cast<int>(byte & 7);
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>(byte & 128 ? -size : size);
}

// All codes but the two NaN, in turn.
at::Tensor codes(std::int64_t rows, std::int64_t columns) {
  const at::Tensor n = at::arange(rows * columns).remainder(254);
  return (n + (n >= 127).to(at::kLong)).view({rows, columns});
}

TEST(Fp8, KnownCodes) {
  WeightCase stored;
  stored.tensors["x.weight"] = fp8(at::tensor({0x00, 0x01, 0x38, 0x39, 0x7e, 0xb8, 0xfe, 0x08}).view({2, 4}));
  stored.tensors["x.weight_scale"] = at::tensor({2.0f});
  const at::Tensor expected = at::tensor({0.0f, 0.00390625f, 2.0f, 2.25f, 896.0f, -2.0f, -896.0f, 0.03125f});
  EXPECT_TRUE(at::equal(stored.read({2, 4}), expected.view({2, 4})));
  stored.tensors["x.weight_scale"] = at::scalar_tensor(2.0f);
  EXPECT_TRUE(at::equal(stored.read({2, 4}), expected.view({2, 4})));
}

// Every shape of a scale, in every type, with blocks that the matrix cuts: exactly code times scale in FP32.
TEST(Fp8, ScalesOfTensorRowsAndBlocks) {
  constexpr std::int64_t kRows = 200, kColumns = 130;
  struct Form {
    std::vector<std::int64_t> shape;
    std::int64_t block_rows, block_columns;
  };
  const at::Tensor bytes = codes(kRows, kColumns);
  for (const Form& form : {Form{{}, kRows, kColumns}, Form{{1}, kRows, kColumns}, Form{{1, 1}, kRows, kColumns},
                           Form{{kRows}, 1, kColumns}, Form{{kRows, 1}, 1, kColumns}, Form{{2, 2}, 128, 128},
                           Form{{4, 3}, 64, 48}, Form{{20, 13}, 10, 10}, Form{{1, 2}, 4096, 100}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      WeightCase stored;
      stored.tensors["x.weight"] = fp8(bytes);
      const at::Tensor scale = random_scales(form.shape).to(type);
      stored.tensors["x.weight_scale_inv"] = scale;
      stored.config["quantization_config"] = {{"quant_method", "fp8"},
                                              {"weight_block_size", {form.block_rows, form.block_columns}}};
      const at::Tensor wide_scale = scale.to(at::kFloat).contiguous(), read = stored.read({kRows, kColumns});
      const auto* factors = wide_scale.const_data_ptr<float>();
      const auto* byte = bytes.const_data_ptr<std::int64_t>();
      const auto* value = read.const_data_ptr<float>();
      const std::int64_t wide = (kColumns + form.block_columns - 1) / form.block_columns;
      for (std::int64_t n = 0; n < kRows; ++n) {
        for (std::int64_t k = 0; k < kColumns; ++k) {
          const float factor = factors[n / form.block_rows * wide + k / form.block_columns];
          ASSERT_EQ(value[n * kColumns + k], e4m3(byte[n * kColumns + k]) * factor) << n << " " << k;
        }
      }
      EXPECT_TRUE(at::equal(stored.read({kRows, kColumns}, at::kBFloat16), read.to(at::kBFloat16)));
    }
  }
}

TEST(Fp8, IntegersOfEightBitsHaveTheSameScales) {
  WeightCase stored;
  stored.tensors["x.weight"] = at::tensor({-128, 127, 3, -1}).to(at::kChar).view({2, 2});
  stored.tensors["x.weight_scale"] = at::tensor({0.5f, 2.0f}).view({2, 1});
  EXPECT_TRUE(at::equal(stored.read({2, 2}), at::tensor({-64.0f, 63.5f, 6.0f, -2.0f}).view({2, 2})));
  stored.tensors["x.weight_zero_point"] = at::zeros({2, 1}, at::kChar);
  EXPECT_THAT(stored.fault({2, 2}), HasSubstr("x.weight_zero_point"));
}

TEST(Fp8, HostileTensors) {
  WeightCase stored;
  stored.tensors["x.weight"] = fp8(codes(200, 130));
  EXPECT_THAT(stored.fault({200, 130}), AllOf(HasSubstr("x.weight_scale is missing"), HasSubstr("[200, 130]")));
  const at::Tensor scale = random_scales({2, 2});
  stored.tensors["x.weight_scale_inv"] = scale;
  EXPECT_EQ(stored.fault({200, 130}), "(no error)");
  EXPECT_THAT(stored.fault({200, 131}), AllOf(HasSubstr("x.weight"), HasSubstr("[200, 130]"), HasSubstr("[200, 131]")));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    stored.tensors["x.weight_scale_inv"] = scale.clone().index_put_({at::tensor(1), at::tensor(0)}, at::tensor(bad));
    EXPECT_THAT(stored.fault({200, 130}), AllOf(HasSubstr("x.weight_scale_inv"), HasSubstr("NaN or infinite")));
  }
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
           {2}, {2, 1}, {1, 2}, {3, 2}, {2, 3}, {2, 2, 1}, {130}, {1, 200}, {0}, {200, 2}}) {
    stored.tensors["x.weight_scale_inv"] = at::ones(shape);
    EXPECT_THAT(stored.fault({200, 130}),
                AllOf(HasSubstr("x.weight_scale_inv"), HasSubstr("expected [1], [200], [200, 1]"),
                      HasSubstr("128 x 128, [2, 2]")));
  }
  stored.tensors["x.weight_scale_inv"] = at::ones({2, 2}, at::kInt);
  EXPECT_THAT(stored.fault({200, 130}), AllOf(HasSubstr("I32"), HasSubstr("F32 or BF16 or F16")));
  stored.tensors["x.weight_scale_inv"] = stored.tensors["x.weight_scale"] = scale;
  EXPECT_THAT(stored.fault({200, 130}), HasSubstr("both x.weight_scale_inv and x.weight_scale"));
}

TEST(Fp8, ScaleWithoutQuantizedWeight) {
  WeightCase stored;
  stored.tensors["x.weight_scale"] = at::ones({2});
  EXPECT_THAT(stored.fault({2, 2}), AllOf(HasSubstr("x.weight_scale"), HasSubstr("x.weight is missing")));
  stored.tensors["x.weight"] = at::ones({2, 2}, at::kBFloat16);
  EXPECT_THAT(stored.fault({2, 2}), AllOf(HasSubstr("x.weight_scale"), HasSubstr("x.weight is BF16")));
}

}  // namespace
}  // namespace oscar
