// Rotary embedding: known answers and invariants.
#include "model/rope.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "support/message_of.h"

namespace oscar {
namespace {

SequenceBatch one_sequence(std::int64_t length, std::int64_t start = 0) {
  return {.ids = {0}, .lengths = {length}, .starts = {start}};
}

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat));
}

float at_index(const at::Tensor& t, std::int64_t i) { return t.flatten()[i].item<float>(); }

TEST(Rope, DefaultFrequenciesAreGeometric) {
  RopeConfig rope;
  rope.theta = 10000.0;
  const RopeFrequencies f = rope_frequencies(rope, 8, 2048);
  ASSERT_EQ(f.inverse.size(0), 4);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(at_index(f.inverse, i), std::pow(10.0, -i), 1e-7 * std::pow(10.0, -i) * 4);
  EXPECT_EQ(f.attention_factor, 1.0);
}

// One pass over FP32 rows gives the bits of tensor operations, for any number of pairs and of other channels.
TEST(Rope, OnePassHasTheBitsOfSeparateOperations) {
  for (const std::int64_t pairs : {1, 16, 20, 32}) {
    const at::Tensor x = random({100, 3, 70}, 5).narrow(1, 0, 2);  // not contiguous
    const RopeTable table{random({100, 1, pairs}, 6), random({100, 1, pairs}, 7)};
    const at::Tensor a = x.narrow(2, 0, pairs), b = x.narrow(2, pairs, pairs),
                     rest = x.narrow(2, 2 * pairs, 70 - 2 * pairs);
    const at::Tensor first = at::sub(a * table.cos, b * table.sin), second = at::add(b * table.cos, a * table.sin);
    EXPECT_TRUE(at::equal(apply_rope(x, table), at::cat({first, second, rest}, 2))) << pairs << " pairs";
  }
}

TEST(Rope, LinearDividesEveryFrequency) {
  RopeConfig rope;
  const at::Tensor plain = rope_frequencies(rope, 48, 2048).inverse;
  rope.type = RopeType::kLinear;
  rope.factor = 4.0;
  EXPECT_TRUE(at::equal(rope_frequencies(rope, 48, 2048).inverse, plain / 4));
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  RopeConfig rope;
  rope.theta = 500000.0;
  const at::Tensor plain = rope_frequencies(rope, 128, 8192).inverse;
  rope.type = RopeType::kLlama3;
  rope.factor = 8.0;
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  rope.original_max_position = 8192;
  const at::Tensor scaled = rope_frequencies(rope, 128, 131072).inverse;
  int kept = 0, stretched = 0, blended = 0;
  for (int i = 0; i < 64; ++i) {
    const double wave = 2.0 * std::numbers::pi / at_index(plain, i), ratio = at_index(scaled, i) / at_index(plain, i);
    if (wave < 8192.0 / 4.0) {
      EXPECT_EQ(ratio, 1.0);
      ++kept;
    } else if (wave > 8192.0) {
      EXPECT_NEAR(ratio, 1.0 / 8.0, 1e-6);
      ++stretched;
    } else {
      EXPECT_GT(ratio, 1.0 / 8.0);
      EXPECT_LT(ratio, 1.0);
      ++blended;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(blended, 0);
}

TEST(Rope, YarnKeepsFastAndInterpolatesSlowDimensions) {
  RopeConfig rope;
  rope.theta = 1000000.0;
  const at::Tensor plain = rope_frequencies(rope, 128, 32768).inverse;
  rope.type = RopeType::kYarn;
  rope.factor = 4.0;
  rope.attention_factor = 1.5;
  rope.original_max_position = 32768;
  const RopeFrequencies f = rope_frequencies(rope, 128, 131072);
  EXPECT_EQ(at_index(f.inverse, 0), at_index(plain, 0));
  EXPECT_NEAR(at_index(f.inverse, 63) / at_index(plain, 63), 0.25, 1e-6);
  EXPECT_EQ(f.attention_factor, 1.5);
  const RopeTable table = rope_table(f, one_sequence(1), at::kFloat, at::kCPU);
  EXPECT_EQ(at_index(table.cos, 0), 1.5f);
}

// By hand: inverse = 1 / (factor theta^(2i/d)), the factors by the length of the run.
TEST(Rope, LongRopeTakesItsFactorsByTheLengthOfTheRun) {
  RopeConfig rope{.type = RopeType::kLongRope, .theta = 100.0, .original_max_position = 64, .attention_factor = 1.5};
  rope.short_factor = {1.0, 2.0};
  rope.long_factor = {4.0, 8.0};
  for (const std::int64_t length : {0, 64, 65, 4096}) {
    rope.run_length = length;
    const RopeFrequencies found = rope_frequencies(rope, 4, 4096);
    EXPECT_EQ(found.attention_factor, 1.5);
    const bool is_long = length > 64;
    EXPECT_FLOAT_EQ(found.inverse[0].item<float>(), is_long ? 0.25F : 1.0F) << length;
    EXPECT_FLOAT_EQ(found.inverse[1].item<float>(), is_long ? 0.0125F : 0.05F) << length;
  }
  rope.long_factor = {1.0};
  EXPECT_THROW(rope_frequencies(rope, 4, 4096), InputError);
}

// theta' = theta (f L / M - f + 1)^(d / (d - 2)): with d = 4, f = 2 and L = 2 M the base is 9 times as large.
TEST(Rope, DynamicStretchesTheBaseByTheLengthOfTheRun) {
  RopeConfig rope{.type = RopeType::kDynamic, .theta = 100.0, .factor = 2.0, .original_max_position = 64};
  const auto slow = [&](std::int64_t length) {
    rope.run_length = length;
    return rope_frequencies(rope, 4, 64).inverse[1].item<float>();
  };
  EXPECT_FLOAT_EQ(slow(0), 0.1F);
  EXPECT_FLOAT_EQ(slow(64), 0.1F);
  EXPECT_FLOAT_EQ(slow(128), 0.1F / 3.0F);
}

TEST(Rope, ProportionalTurnsTheFirstPairsAsIfAllDid) {
  RopeConfig rope;
  rope.type = RopeType::kProportional;
  rope.theta = 10000.0, rope.partial = 0.6, rope.factor = 2.0;
  const at::Tensor inverse = rope_frequencies(rope, 16, 2048).inverse;
  ASSERT_EQ(inverse.size(0), 8);
  for (std::int64_t i = 0; i < 8; ++i) {  // int(0.6 * 16 / 2) pairs
    const double expected = i < 4 ? std::pow(10000.0, -static_cast<double>(i) / 8.0) / 2.0 : 0.0;
    EXPECT_NEAR(inverse[i].item<double>(), expected, 1e-7) << i;
  }
}

TEST(Rope, OddHeadDimIsRefused) { EXPECT_THROW(rope_frequencies(RopeConfig{}, 7, 2048), InputError); }

TEST(Rope, PositionZeroIsIdentity) {
  const at::Tensor x = random({1, 3, 48}, 1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const RopeTable table = rope_table(rope_frequencies(RopeConfig{}, 48, 2048), one_sequence(1), dtype, at::kCPU);
    EXPECT_TRUE(at::equal(apply_rope(x.to(dtype), table), x.to(dtype)));
  }
}

TEST(Rope, RotationKeepsTheNormOfEveryPair) {
  const at::Tensor x = random({100, 3, 80}, 2);
  const RopeTable table = rope_table(rope_frequencies(RopeConfig{}, 80, 2048), one_sequence(100), at::kFloat, at::kCPU);
  const at::Tensor y = apply_rope(x, table);
  const auto pair_norm = [](const at::Tensor& t) {
    return t.narrow(-1, 0, 40).square() + t.narrow(-1, 40, 40).square();
  };
  EXPECT_TRUE(at::allclose(pair_norm(y), pair_norm(x), 1e-5, 1e-6));
  EXPECT_FALSE(at::allclose(y, x, 1e-2, 1e-2));
}

TEST(Rope, ProductDependsOnDistanceAlone) {
  const RopeFrequencies f = rope_frequencies(RopeConfig{}, 64, 2048);
  const at::Tensor q = random({1, 1, 64}, 3), k = random({1, 1, 64}, 4);
  const auto product = [&](std::int64_t i, std::int64_t j) {
    const at::Tensor a = apply_rope(q, rope_table(f, one_sequence(1, i), at::kFloat, at::kCPU));
    const at::Tensor b = apply_rope(k, rope_table(f, one_sequence(1, j), at::kFloat, at::kCPU));
    return (a * b).sum().item<double>();
  };
  EXPECT_NEAR(product(17, 5), product(112, 100), 1e-3);
  EXPECT_GT(std::abs(product(17, 5) - product(17, 6)), 1e-3);
}

TEST(Rope, QuarterTurnSwapsHalves) {
  // One pair, one radian per token; the rotation of (1, 0) at position p is (cos p, sin p).
  const RopeTable table = rope_table(rope_frequencies(RopeConfig{}, 2, 16), one_sequence(4), at::kFloat, at::kCPU);
  const at::Tensor y = apply_rope(at::tensor({1.0f, 0.0f}).view({1, 1, 2}).expand({4, 1, 2}), table);
  for (int p = 0; p < 4; ++p) {
    EXPECT_NEAR(at_index(y, 2 * p), std::cos(p), 1e-6);
    EXPECT_NEAR(at_index(y, 2 * p + 1), std::sin(p), 1e-6);
  }
}

// Pairs (2i, 2i + 1) of the first half of the head turn as half-split pairs of a head of that size do; the rest stays.
TEST(Rope, InterleavedPartOfTheHead) {
  RopeConfig config;
  config.partial = 0.5;
  config.interleaved = true;
  const RopeFrequencies f = rope_frequencies(config, 32, 2048), small = rope_frequencies(RopeConfig{}, 16, 2048);
  EXPECT_TRUE(at::equal(f.inverse, small.inverse));
  const at::Tensor x = random({9, 3, 32}, 6);
  const at::Tensor y = apply_rope(x, rope_table(f, one_sequence(9), at::kFloat, at::kCPU));
  EXPECT_TRUE(at::equal(y.narrow(2, 16, 16), x.narrow(2, 16, 16)));
  const at::Tensor part = x.narrow(2, 0, 16);
  const at::Tensor halves = at::cat({part.slice(2, 0, 16, 2), part.slice(2, 1, 16, 2)}, 2);
  const at::Tensor turned = apply_rope(halves, rope_table(small, one_sequence(9), at::kFloat, at::kCPU));
  EXPECT_TRUE(at::equal(y.slice(2, 0, 16, 2), turned.narrow(2, 0, 8)));
  EXPECT_TRUE(at::equal(y.slice(2, 1, 16, 2), turned.narrow(2, 8, 8)));
  EXPECT_TRUE(at::equal(apply_rope(x, RopeTable{}), x));  // a layer without positions
}

TEST(Rope, CommonRotationOnlyWhereAllLayersShareIt) {
  ModelConfig config;
  config.layers = 2, config.head_dim = 16, config.max_position = 2048, config.architecture = "X";
  EXPECT_EQ(common_rope(config).inverse.size(0), 8);
  EXPECT_NO_THROW(require_full_rope(config, "It"));
  config.layer_rope = {LayerRope::kGlobal, LayerRope::kNone};
  EXPECT_EQ(common_rope(config).inverse.size(0), 0);
  EXPECT_THROW(require_full_rope(config, "It"), InputError);
  config.layer_rope.clear(), config.rope.interleaved = true;
  EXPECT_EQ(common_rope(config).inverse.size(0), 0);
  config.rope.interleaved = false, config.norm_after_rope = true;
  EXPECT_EQ(common_rope(config).inverse.size(0), 0);
  EXPECT_THAT(message_of([&] { require_full_rope(config, "It"); }), testing::HasSubstr("normalizes them after"));
  config.norm_after_rope = false, config.rope.partial = 0.5;
  EXPECT_EQ(common_rope(config).inverse.size(0), 4);
  EXPECT_THROW(require_full_rope(config, "It"), InputError);
}

// 1 + log(1 + floor((i + 1) / 2)) at positions 0 to 3, and the same from another start.
TEST(Rope, QueriesGrowWithTheLogarithmOfTheirPosition) {
  const QueryScale scale{.beta = 1.0, .length = 2.0, .first = 1};
  const float two = 1.0f + std::log(2.0f), three = 1.0f + std::log(3.0f);
  const at::Tensor found = query_scales(scale, one_sequence(4), at::kCPU);
  EXPECT_TRUE(at::allclose(found.flatten(), at::tensor({1.0f, two, two, three}), 1e-6));
  EXPECT_TRUE(at::equal(query_scales(scale, one_sequence(2, 2), at::kCPU), found.narrow(0, 2, 2)));
}

TEST(Rope, PositionsFollowStartsOfPackedSequences) {
  const RopeFrequencies f = rope_frequencies(RopeConfig{}, 16, 2048);
  const SequenceBatch packed{.ids = {0, 1}, .lengths = {3, 2}, .starts = {0, 40}};
  const RopeTable both = rope_table(f, packed, at::kFloat, at::kCPU);
  EXPECT_TRUE(at::equal(both.cos.narrow(0, 0, 3), rope_table(f, one_sequence(3), at::kFloat, at::kCPU).cos));
  EXPECT_TRUE(at::equal(both.sin.narrow(0, 3, 2), rope_table(f, one_sequence(2, 40), at::kFloat, at::kCPU).sin));
}

}  // namespace
}  // namespace oscar
