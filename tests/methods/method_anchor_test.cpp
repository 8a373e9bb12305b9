// Whole methods on independent Gaussian rows: a rotation leaves them Gaussian, so that every method has to land on the
// figures of its code. Methods whose code has no published figures are left to the Python oracle.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "methods/engine.h"
#include "methods/gaussian_rows.h"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 1280, kHeads = 2, kDim = 128;

struct Figures {
  double relative_mse, cosine, gain, tolerance = 0.01;
};
constexpr Figures kMinMax2g32{.154, .933, 1.015}, kMinMax2{.251, .896, 1.010},
    // A quarter of the channels with one bit more; these are the ones of most energy.
    kLloyd25{.75 * .116 + .25 * .034, .951, .906, 0.03}, kLloyd4{.0095, .9952, .9905, 0.03},
    kMinMax4{.00997, .9951, 1.0};

struct MethodAnchor {
  const char* id;
  Figures key, value;
};

class MethodOnGaussianRows : public testing::TestWithParam<MethodAnchor> {};

TEST_P(MethodOnGaussianRows, LandsOnItsFigures) {
  ModelConfig model;
  model.layers = 16, model.query_heads = kHeads, model.kv_heads = kHeads, model.head_dim = kDim;
  model.max_position = 65536, model.rope.theta = 10000.0;
  const MethodEngine engine(*find_method_spec(GetParam().id), model);
  for (const Side side : {Side::kKey, Side::kValue}) {
    const std::vector<float> x = gaussian(kTokens * kHeads * kDim, side == Side::kKey ? 21 : 22);
    at::Tensor rows = at::empty({kTokens, kHeads, kDim});
    std::copy(x.begin(), x.end(), rows.mutable_data_ptr<float>());
    const at::Tensor decoded = engine.reconstruct(side, rows).contiguous();
    const std::int64_t begin = engine.side(side).windows.sink * kHeads * kDim;
    const std::int64_t tile = tile_tokens(engine.side(side)) * kHeads * kDim,
                       end = (std::ssize(x) - begin) / tile * tile;
    const float* y = decoded.const_data_ptr<float>() + begin;
    const CodeFigures f = figures({x.begin() + begin, x.begin() + begin + end}, {y, y + end});
    const Figures& expected = side == Side::kKey ? GetParam().key : GetParam().value;
    EXPECT_NEAR(f.relative_mse / expected.relative_mse, 1.0, expected.tolerance)
        << (side == Side::kKey ? "keys" : "values");
    EXPECT_NEAR(f.cosine, expected.cosine, 0.0025);
    EXPECT_NEAR(f.gain, expected.gain, 0.008);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, MethodOnGaussianRows,
                         testing::Values(MethodAnchor{"kivi2", kMinMax2g32, kMinMax2g32},
                                         MethodAnchor{"kivi2-g128", kMinMax2, kMinMax2},
                                         MethodAnchor{"turboquant2.5", kLloyd25, kLloyd25},
                                         MethodAnchor{"turboquant4", kLloyd4, kMinMax4}),
                         [](const auto& info) {
                           std::string name = info.param.id;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace oscar
