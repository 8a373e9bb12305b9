// What a CPU measures of models of several sizes by default.
#include <gtest/gtest.h>

#include "pipeline/fit/fit_curves.h"

namespace oscar {
namespace {

ModelConfig model_of(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
                     std::int64_t head_dim, std::int64_t intermediate, std::int64_t vocabulary) {
  ModelConfig model;
  model.layers = layers, model.hidden = hidden, model.query_heads = heads, model.kv_heads = kv_heads;
  model.head_dim = head_dim, model.intermediate = intermediate, model.vocabulary = vocabulary;
  return model;
}

const ModelConfig kSmolLm2 = model_of(30, 576, 9, 3, 64, 1536, 49152);   // 135 million weights
const ModelConfig kGemma3 = model_of(18, 640, 4, 1, 256, 2048, 262144);  // 270 million, few layers
const ModelConfig kSample = model_of(5, 256, 4, 2, 64, 512, 8000);

TEST(CurveShape, ACpuMeasuresLessOfLargerModels) {
  const CurveArguments none;
  EXPECT_EQ(curve_shape(none, kSample, at::kCPU).text(), "8 sequences of 2,048 tokens");
  EXPECT_EQ(curve_shape(none, kGemma3, at::kCPU).text(), "4 sequences of 2,048 tokens");
  const CurveShape small = curve_shape(none, kSmolLm2, at::kCPU);
  EXPECT_EQ(small.text(), "6 sequences of 1,024 tokens, one width of a side through all layers");
  EXPECT_TRUE(small.one());
  EXPECT_FALSE(curve_shape(none, kSmolLm2, at::kCUDA).one());
}

TEST(CurveShape, OptionsMeasureAllWidths) {
  CurveArguments asked;
  asked.sequences = 4;
  EXPECT_FALSE(curve_shape(asked, kSmolLm2, at::kCPU).one());
  EXPECT_EQ(curve_shape(asked, kSmolLm2, at::kCPU).sequences, 4);
}

TEST(CurveShape, OneWidthTakesAThirdOfThePasses) {
  const CurveShape shape = curve_shape({}, kSmolLm2, at::kCPU);
  const auto passes = [&](std::int64_t whole) {
    return most_curve_passes(kSmolLm2, shape.sequences, 1, shape.profiles, whole);
  };
  EXPECT_EQ(passes(0), 6840u);
  EXPECT_LT(2.4 * static_cast<double>(passes(0)), static_cast<double>(passes(shape.sequences)));
}

}  // namespace
}  // namespace oscar
