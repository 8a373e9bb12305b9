// Packed integers, AWQ and GPTQ: known words, random weights against plain loops, hostile tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>

#include "weights/unpacked_codes.h"
#include "weights/weights_fixture.h"

namespace oscar {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

TEST(Integers, KnownWords) {
  const at::Tensor words = at::tensor({word(0x76543210u), word(0xfedcba98u)}).view({1, 2});
  EXPECT_TRUE(at::equal(unpacked_integers(words, 4), at::arange(16, at::kFloat).view({1, 16})));
  EXPECT_TRUE(at::equal(unpacked_integers(words, 8),
                        at::tensor({0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}).to(at::kFloat).view({1, 8})));
}

// Codes [R, C] -> words [R, ceil(C bits / 32)]: place[j] of a word holds code j of it.
at::Tensor packed(const at::Tensor& codes, int bits, const std::array<int, 8>& place = {0, 1, 2, 3, 4, 5, 6, 7}) {
  const std::int64_t per_word = 32 / bits, columns = codes.size(1), words = (columns + per_word - 1) / per_word;
  at::Tensor out = at::zeros({codes.size(0), words}, at::kInt);
  for (std::int64_t r = 0; r < codes.size(0); ++r) {
    for (std::int64_t w = 0; w < words; ++w) {
      std::uint32_t value = 0;
      for (std::int64_t j = 0; j < per_word && w * per_word + j < columns; ++j) {
        const auto code = static_cast<std::uint32_t>(codes[r][w * per_word + j].item<std::int64_t>());
        value |= code << (bits * place[static_cast<std::size_t>(j)]);
      }
      out[r][w] = word(value);
    }
  }
  return out;
}

at::Tensor packed_rows(const at::Tensor& codes, int bits) { return packed(codes.t(), bits).t().contiguous(); }

constexpr std::array kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

// (code - zero(n, k)) scale(n, k), one number after another.
void expect_weight(const at::Tensor& read, const at::Tensor& codes,
                   const std::function<std::int64_t(std::int64_t, std::int64_t)>& zero,
                   const std::function<float(std::int64_t, std::int64_t)>& scale) {
  ASSERT_EQ(read.sizes(), codes.sizes());
  for (std::int64_t n = 0; n < codes.size(0); ++n) {
    for (std::int64_t k = 0; k < codes.size(1); ++k) {
      const auto level = static_cast<float>(codes[n][k].item<std::int64_t>() - zero(n, k));
      ASSERT_EQ(read[n][k].item<float>(), level * scale(n, k)) << n << " " << k;
    }
  }
}

struct PackedCase : WeightCase {
  std::int64_t rows = 13, columns = 60, groups = 5;
  int bits = 4;
  at::Tensor codes, zeros, scale;

  explicit PackedCase(int bits_, std::int64_t groups_ = 5) : groups(groups_), bits(bits_) {
    codes = random_codes({rows, columns}, std::int64_t{1} << bits);
    zeros = random_codes({rows, groups}, std::int64_t{1} << bits, 8);
    scale = random_scales({rows, groups}).to(at::kBFloat16);
    tensors["x.weight_packed"] = packed(codes, bits);
    tensors["x.weight_scale"] = scale;
    tensors["x.weight_shape"] = at::tensor({rows, columns});
  }
  std::int64_t zero_at(std::int64_t n, std::int64_t group) const { return zeros[n][group].item<std::int64_t>(); }
  float scale_at(std::int64_t n, std::int64_t group) const { return scale[n][group].to(at::kFloat).item<float>(); }
};

TEST(PackedIntegers, GroupsAndChannels) {
  for (const int bits : {4, 8}) {
    for (const std::int64_t groups : {1, 5}) {
      PackedCase stored(bits, groups);
      const std::int64_t size = stored.columns / groups;
      const auto scale = [&](std::int64_t n, std::int64_t k) { return stored.scale_at(n, k / size); };
      expect_weight(
          stored.read({13, 60}), stored.codes, [&](auto, auto) { return std::int64_t{1} << (bits - 1); }, scale);
      stored.tensors["x.weight_zero_point"] = packed_rows(stored.zeros, bits);
      expect_weight(
          stored.read({13, 60}), stored.codes, [&](auto n, auto k) { return stored.zero_at(n, k / size); }, scale);
    }
  }
}

TEST(PackedIntegers, GroupsInActivationOrder) {
  PackedCase stored(4);
  const at::Tensor group = random_codes({60}, 5, 9);
  stored.tensors["x.weight_zero_point"] = packed_rows(stored.zeros, 4);
  stored.tensors["x.weight_g_idx"] = group.to(at::kInt);
  const auto of = [&](std::int64_t k) { return group[k].item<std::int64_t>(); };
  expect_weight(
      stored.read({13, 60}), stored.codes, [&](auto n, auto k) { return stored.zero_at(n, of(k)); },
      [&](auto n, auto k) { return stored.scale_at(n, of(k)); });
  stored.tensors["x.weight_g_idx"] = at::full({60}, -1, at::kInt);  // no order
  EXPECT_EQ(stored.fault({13, 60}), "(no error)");
  stored.tensors["x.weight_g_idx"][7] = 5;
  EXPECT_THAT(stored.fault({13, 60}), AllOf(HasSubstr("x.weight_g_idx"), HasSubstr("among the 5")));
}

// Eight rows share one word of zero points, whose transposed view is a row with a stride.
TEST(PackedIntegers, ZeroPointsOfEightRows) {
  WeightCase stored;
  stored.tensors["x.weight_packed"] = at::full({8, 2}, word(0x99999999u), at::kInt);
  stored.tensors["x.weight_scale"] = at::ones({8, 2});
  stored.tensors["x.weight_zero_point"] = at::full({1, 2}, word(0x76543210u), at::kInt);
  stored.tensors["x.weight_shape"] = at::tensor({8, 16});
  const at::Tensor expected = (9 - at::arange(8)).to(at::kFloat).unsqueeze(1).expand({8, 16});
  EXPECT_TRUE(at::equal(stored.read({8, 16}), expected));
}

TEST(PackedIntegers, HostileTensors) {
  const Shape shape = {13, 60};
  const PackedCase sound(4);
  const auto fault = [&](const std::string& name, const at::Tensor& tensor) {
    PackedCase stored = sound;
    if (tensor.defined()) {
      stored.tensors[name] = tensor;
    } else {
      stored.tensors.erase(name);
    }
    return stored.fault(shape);
  };
  EXPECT_EQ(sound.fault(shape), "(no error)");
  EXPECT_THAT(fault("x.weight_scale", {}), HasSubstr("x.weight_scale is missing"));
  EXPECT_THAT(fault("x.weight_shape", {}), HasSubstr("x.weight_shape is missing"));
  EXPECT_THAT(fault("x.weight_packed", {}), HasSubstr("x.weight is missing"));
  EXPECT_THAT(fault("x.weight_shape", at::tensor(Shape{13, 61})), AllOf(HasSubstr("[13, 61]"), HasSubstr("[13, 60]")));
  EXPECT_THAT(fault("x.weight_packed", at::zeros({13, 9}, at::kInt)),
              AllOf(HasSubstr("[13, 9]"), HasSubstr("[13, 8]")));
  EXPECT_THAT(fault("x.weight_scale", at::ones({13, 7})), AllOf(HasSubstr("[13, 7]"), HasSubstr("[13, 1]")));
  EXPECT_THAT(fault("x.weight_scale", at::full({13, 5}, NAN)), AllOf(HasSubstr("x.weight_scale"), HasSubstr("NaN")));
  EXPECT_THAT(fault("x.weight_scale", at::ones({13, 0})), HasSubstr("[13, 0]"));
  EXPECT_THAT(fault("x.weight_zero_point", at::zeros({13, 5}, at::kInt)),
              AllOf(HasSubstr("[13, 5]"), HasSubstr("[2, 5]")));
  EXPECT_THAT(fault("x.weight_zero_point", at::zeros({2, 5}, at::kChar)), HasSubstr("I8"));
  EXPECT_THAT(fault("x.weight_g_idx", at::zeros({59}, at::kInt)), HasSubstr("[59]"));
}

TEST(Awq, PackingOrder) {
  WeightCase stored;
  stored.tensors["x.qweight"] = at::tensor({word(0x76543210u)}).view({1, 1});
  stored.tensors["x.qzeros"] = at::zeros({1, 1}, at::kInt);
  stored.tensors["x.scales"] = at::ones({1, 8}, at::kHalf);
  // The lowest bits are of column 0, the next of 2, 4, 6, 1, 3, 5, 7.
  EXPECT_TRUE(at::equal(stored.read({8, 1}).flatten(), at::tensor({0.0f, 4.0f, 1.0f, 5.0f, 2.0f, 6.0f, 3.0f, 7.0f})));
}

TEST(Awq, AgainstPlainLoops) {
  constexpr std::int64_t kRows = 24, kColumns = 40, kGroups = 5;
  const at::Tensor codes = random_codes({kRows, kColumns}, 16), zeros = random_codes({kGroups, kRows}, 16, 8);
  const at::Tensor scale = random_scales({kGroups, kRows}).to(at::kHalf);
  WeightCase stored;
  stored.tensors["x.qweight"] = packed(codes.t(), 4, kAwqPlace);
  stored.tensors["x.qzeros"] = packed(zeros, 4, kAwqPlace);
  stored.tensors["x.scales"] = scale;
  expect_weight(
      stored.read({kRows, kColumns}), codes,
      [&](auto n, auto k) { return zeros[k / 8][n].template item<std::int64_t>(); },
      [&](auto n, auto k) { return scale[k / 8][n].to(at::kFloat).template item<float>(); });
  stored.tensors["x.scales"] = at::ones({3, kRows});
  EXPECT_THAT(stored.fault({kRows, kColumns}), AllOf(HasSubstr("x.scales"), HasSubstr("[3, 24]")));
  stored.tensors["x.scales"] = scale;
  stored.tensors.erase("x.qzeros");
  EXPECT_THAT(stored.fault({kRows, kColumns}), HasSubstr("x.qzeros is missing"));
  stored.tensors["x.qzeros"] = at::zeros({kGroups, 4}, at::kInt);
  EXPECT_THAT(stored.fault({kRows, kColumns}), AllOf(HasSubstr("[5, 4]"), HasSubstr("[5, 3]")));
  stored.tensors.erase("x.qweight");
  EXPECT_THAT(stored.fault({kRows, kColumns}), AllOf(HasSubstr("x.qzeros"), HasSubstr("x.weight is missing")));
}

struct GptqCase : WeightCase {
  static constexpr std::int64_t kRows = 24, kColumns = 40, kGroups = 5;
  at::Tensor codes, zeros, scale;

  // Stored zero points are the true ones less `offset`.
  explicit GptqCase(int bits, std::int64_t offset = 1) {
    codes = random_codes({kRows, kColumns}, std::int64_t{1} << bits);
    zeros = random_codes({kGroups, kRows}, (std::int64_t{1} << bits) - 1, 8) + 1;
    scale = random_scales({kGroups, kRows}).to(at::kHalf);
    tensors["x.qweight"] = packed_rows(codes.t(), bits);
    tensors["x.qzeros"] = packed(zeros - offset, bits);
    tensors["x.scales"] = scale;
  }
  void expect(const std::function<std::int64_t(std::int64_t)>& group) const {
    expect_weight(
        read({kRows, kColumns}), codes,
        [&](auto n, auto k) { return zeros[group(k)][n].template item<std::int64_t>(); },
        [&](auto n, auto k) { return scale[group(k)][n].to(at::kFloat).template item<float>(); });
  }
};

TEST(Gptq, ZeroPointsOfBothVersions) {
  for (const int bits : {4, 8}) {
    GptqCase(bits).expect([](std::int64_t k) { return k / 8; });
    GptqCase second(bits, 0);
    second.config["quantization_config"] = {{"quant_method", "gptq"}, {"checkpoint_format", "gptq_v2"}};
    second.expect([](std::int64_t k) { return k / 8; });
  }
}

TEST(Gptq, GroupsInActivationOrder) {
  GptqCase stored(4);
  const at::Tensor group = random_codes({GptqCase::kColumns}, GptqCase::kGroups, 9);
  stored.tensors["x.g_idx"] = group.to(at::kInt);
  stored.expect([&](std::int64_t k) { return group[k].item<std::int64_t>(); });
  stored.config["quantization_config"] = {{"quant_method", "gptq"}, {"desc_act", true}};
  stored.expect([&](std::int64_t k) { return group[k].item<std::int64_t>(); });
  stored.tensors.erase("x.g_idx");
  EXPECT_THAT(stored.fault({GptqCase::kRows, GptqCase::kColumns}), HasSubstr("x.g_idx is missing"));
}

TEST(Gptq, HostileTensors) {
  const Shape shape = {GptqCase::kRows, GptqCase::kColumns};
  const GptqCase sound(4);
  const auto fault = [&](const std::string& name, const at::Tensor& tensor) {
    GptqCase stored = sound;
    stored.tensors[name] = tensor;
    return stored.fault(shape);
  };
  EXPECT_EQ(sound.fault(shape), "(no error)");
  EXPECT_THAT(fault("x.qweight", at::zeros({6, 24}, at::kInt)), AllOf(HasSubstr("[6, 24]"), HasSubstr("[5, 24]")));
  EXPECT_THAT(fault("x.qweight", at::zeros({5, 24})), AllOf(HasSubstr("F32"), HasSubstr("expected I32")));
  EXPECT_THAT(fault("x.scales", at::ones({5, 23})), AllOf(HasSubstr("[5, 23]"), HasSubstr("[5, 24]")));
  EXPECT_THAT(fault("x.scales", at::full({5, 24}, INFINITY)), AllOf(HasSubstr("x.scales"), HasSubstr("infinite")));
  EXPECT_THAT(fault("x.qzeros", at::zeros({4, 3}, at::kInt)), AllOf(HasSubstr("[4, 3]"), HasSubstr("[5, 3]")));
  EXPECT_THAT(fault("x.g_idx", at::full({40}, 5, at::kInt)), AllOf(HasSubstr("x.g_idx"), HasSubstr("among the 5")));
  EXPECT_THAT(fault("x.g_idx", at::full({40}, -2, at::kInt)), HasSubstr("x.g_idx"));
  EXPECT_THAT(fault("x.g_idx", at::zeros({41}, at::kInt)), HasSubstr("[41]"));
  EXPECT_THAT(fault("x.weight", at::ones({24, 40})), HasSubstr("twice, plain and as x.qweight"));
}

}  // namespace
}  // namespace oscar
