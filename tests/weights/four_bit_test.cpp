// MXFP4 and NVFP4: known codes and scales, random weights against plain loops, hostile tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "weights/unpacked_codes.h"
#include "weights/weights_fixture.h"

namespace oscar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// E2M1 by its definition: sign, two bits of exponent with bias 1, one of mantissa, subnormal at exponent 0.
float e2m1(std::int64_t code) {
  const auto exponent = static_cast<int>(code >> 1 & 3), mantissa = static_cast<int>(code & 1);
  const double size = exponent == 0 ? 0.5 * mantissa : std::ldexp(2 + mantissa, exponent - 2);
  return static_cast<float>(code & 8 ? -size : size);
}

// Codes [..., K] of 4 bits -> bytes [..., K / 2], the first one in the low half.
at::Tensor packed(const at::Tensor& codes) {
  return (codes.slice(-1, 0, {}, 2) + codes.slice(-1, 1, {}, 2) * 16).to(at::kByte).contiguous();
}

TEST(FourBits, KnownCodes) {
  const at::Tensor bytes = at::tensor({0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}).to(at::kByte);
  const at::Tensor expected = at::tensor(
      {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f});
  EXPECT_TRUE(at::equal(unpacked_e2m1(bytes), expected));
  for (std::int64_t code = 0; code < 16; ++code) EXPECT_EQ(expected[code].item<float>(), e2m1(code));
}

TEST(FourBits, KnownPowers) {
  const at::Tensor powers = e8m0_scales(at::tensor({0, 1, 126, 127, 128, 254, 255}).to(at::kByte));
  const std::array expected = {0x1p-127f, 0x1p-126f, 0.5f, 1.0f, 2.0f, 0x1p127f};
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(powers[static_cast<std::int64_t>(i)].item<float>(), expected[i]);
  EXPECT_TRUE(std::isnan(powers[6].item<float>()));
}

// Experts as gpt-oss stores them: rows of [E, 2I, H] share scales along H, the weight is [E, H, 2I].
TEST(Mxfp4, Experts) {
  constexpr std::int64_t kExperts = 3, kRows = 10, kColumns = 96;
  const at::Tensor codes = random_codes({kExperts, kRows, kColumns}, 16);
  const at::Tensor scale = random_codes({kExperts, kRows, kColumns / 32}, 11, 7) + 120;
  WeightCase stored;
  stored.tensors["m.experts.down_proj_blocks"] = packed(codes).view({kExperts, kRows, kColumns / 32, 16});
  stored.tensors["m.experts.down_proj_scales"] = scale.to(at::kByte);
  const at::Tensor read = stored.read({kExperts, kColumns, kRows}, at::kFloat, "m.experts.down_proj");
  for (std::int64_t e = 0; e < kExperts; ++e) {
    for (std::int64_t n = 0; n < kRows; ++n) {
      for (std::int64_t k = 0; k < kColumns; ++k) {
        const auto power = static_cast<int>(scale[e][n][k / 32].item<std::int64_t>() - 127);
        ASSERT_EQ(read[e][k][n].item<float>(), std::ldexp(e2m1(codes[e][n][k].item<std::int64_t>()), power));
      }
    }
  }
  EXPECT_TRUE(at::equal(stored.read({kExperts, kColumns, kRows}, at::kBFloat16, "m.experts.down_proj"),
                        read.to(at::kBFloat16)));
}

TEST(Mxfp4, HostileTensors) {
  const std::string name = "m.experts.down_proj";
  const std::vector<std::int64_t> shape = {2, 64, 6};
  WeightCase stored;
  at::Tensor& blocks = stored.tensors[name + "_blocks"] = at::zeros({2, 6, 2, 16}, at::kByte);
  EXPECT_THAT(stored.fault(shape, name), HasSubstr(name + "_scales is missing"));
  at::Tensor& scales = stored.tensors[name + "_scales"] = at::full({2, 6, 2}, 127, at::kByte);
  EXPECT_EQ(stored.fault(shape, name), "(no error)");
  EXPECT_THAT(stored.fault({2, 70, 6}, name), HasSubstr("70 columns are no multiple"));
  EXPECT_THAT(stored.fault({3, 64, 6}, name), AllOf(HasSubstr("[2, 6, 2, 16]"), HasSubstr("[3, 6, 2, 16]")));
  EXPECT_THAT(stored.fault({64, 6}, name), HasSubstr("together they are no quantized weight"));
  scales[1][5][1] = 255;
  EXPECT_THAT(stored.fault(shape, name), AllOf(HasSubstr(name + "_scales"), HasSubstr("NaN")));
  scales = at::full({2, 6, 3}, 127, at::kByte);
  EXPECT_THAT(stored.fault(shape, name), AllOf(HasSubstr("[2, 6, 3]"), HasSubstr("[2, 6, 2]")));
  scales = at::ones({2, 6, 2});
  EXPECT_THAT(stored.fault(shape, name), AllOf(HasSubstr("F32"), HasSubstr("expected U8")));
  scales = at::full({2, 6, 2}, 127, at::kByte);
  stored.tensors[name] = at::ones({2, 64, 6});
  EXPECT_THAT(stored.fault(shape, name), HasSubstr("twice, plain and as " + name + "_blocks"));
  stored.tensors.erase(name);
  blocks = at::zeros({2, 6, 2, 16});
  EXPECT_THAT(stored.fault(shape, name), AllOf(HasSubstr("_blocks"), HasSubstr("F32"), HasSubstr("expected U8")));
  stored.tensors.erase(name + "_blocks");
  EXPECT_THAT(stored.fault(shape, name), AllOf(HasSubstr(name + "_scales"), HasSubstr(name + " is missing")));
}

struct Nvfp4Case : WeightCase {
  static constexpr std::int64_t kRows = 7, kColumns = 48;
  at::Tensor codes = random_codes({kRows, kColumns}, 16);
  at::Tensor scale = random_scales({kRows, kColumns / 16}).mul_(100.0).to(at::kFloat8_e4m3fn);

  void store(const std::string& codes_name, const std::string& whole_name, const at::Tensor& whole) {
    tensors[codes_name] = packed(codes);
    tensors["x.weight_scale"] = scale;
    tensors[whole_name] = whole;
  }

  template <typename Scale>
  void expect(const Scale& scaled) const {
    const at::Tensor wide = scale.to(at::kFloat), weight = read({kRows, kColumns});
    for (std::int64_t n = 0; n < kRows; ++n) {
      for (std::int64_t k = 0; k < kColumns; ++k) {
        const float factor = scaled(wide[n][k / 16].item<float>());
        ASSERT_EQ(weight[n][k].item<float>(), e2m1(codes[n][k].item<std::int64_t>()) * factor);
      }
    }
  }
};

TEST(Nvfp4, GlobalScaleDividesOrMultiplies) {
  Nvfp4Case divided;
  divided.store("x.weight_packed", "x.weight_global_scale", at::tensor({37.0f}));
  divided.expect([](float scale) { return scale / 37.0f; });
  Nvfp4Case multiplied;  // modelopt
  multiplied.store("x.weight", "x.weight_scale_2", at::scalar_tensor(0.37f));
  multiplied.expect([](float scale) { return scale * 0.37f; });
}

TEST(Nvfp4, HostileTensors) {
  const std::vector<std::int64_t> shape = {7, 48};
  Nvfp4Case stored;
  stored.store("x.weight_packed", "x.weight_global_scale", at::zeros({1}));
  EXPECT_THAT(stored.fault(shape), AllOf(HasSubstr("x.weight_global_scale"), HasSubstr("is 0")));
  stored.tensors["x.weight_global_scale"] = at::tensor({NAN});
  EXPECT_THAT(stored.fault(shape), AllOf(HasSubstr("x.weight_global_scale"), HasSubstr("NaN")));
  stored.tensors["x.weight_global_scale"] = at::ones({2});
  EXPECT_THAT(stored.fault(shape), AllOf(HasSubstr("[2]"), HasSubstr("expected [1]")));
  stored.tensors.erase("x.weight_global_scale");
  EXPECT_THAT(stored.fault(shape), HasSubstr("x.weight_global_scale is missing"));
  stored.tensors["x.weight_global_scale"] = at::ones({1});
  EXPECT_EQ(stored.fault(shape), "(no error)");
  EXPECT_THAT(stored.fault({7, 47}), HasSubstr("47 columns are no multiple"));
  EXPECT_THAT(stored.fault({7, 64}), AllOf(HasSubstr("[7, 24]"), HasSubstr("[7, 32]")));
  stored.scale.view(at::kByte)[3][1] = 0x7f;  // NaN
  stored.tensors["x.weight_scale"] = stored.scale;
  EXPECT_THAT(stored.fault(shape), AllOf(HasSubstr("x.weight_scale"), HasSubstr("NaN")));
  stored.tensors["x.weight_scale"] = at::ones({7, 3});
  EXPECT_THAT(stored.fault(shape), AllOf(HasSubstr("F32"), HasSubstr("expected F8_E4M3")));
  stored.tensors.erase("x.weight_scale");
  EXPECT_THAT(stored.fault(shape), HasSubstr("x.weight_scale is missing"));
}

}  // namespace
}  // namespace oscar
