#include "cache/kv_method.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

using ::testing::HasSubstr;

ModelConfig model_of(std::int64_t d = 128) {
  ModelConfig model;
  model.layers = 3, model.query_heads = 8, model.kv_heads = 2, model.head_dim = d;
  return model;
}

Bundle bundle_for(const ModelConfig& model, const std::string& method) {
  Bundle bundle;
  bundle.method = method, bundle.scope = "layer", bundle.encoder = "search", bundle.quant_group = 64;
  for (std::int64_t i = 0; i < model.layers; ++i) {
    LayerTransform t{i, model.head_dim, model.kv_heads, hadamard_side(model.head_dim), identity_side(model.head_dim)};
    t.key.clip = {0.96f}, t.value.clip = {0.9f, 0.8f};
    bundle.layers.push_back(t);
  }
  return bundle;
}

template <class E>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& e) {
    return e.what();
  }
  return "(no such error)";
}

TEST(Method, Baselines) {
  const ModelConfig model = model_of();
  const KvMethod bf16 = make_method("bf16", model, nullptr, {});
  EXPECT_FALSE(bf16.quantized);
  EXPECT_DOUBLE_EQ(bf16.bits_per_element(), 16.0);
  EXPECT_DOUBLE_EQ(bf16.bits_per_element_at(2048), 16.0);
  const KvMethod naive = make_method("naive2", model, nullptr, {});
  EXPECT_TRUE(naive.quantized);
  EXPECT_DOUBLE_EQ(naive.bits_per_element(), 2.25);
  EXPECT_NEAR(naive.bits_per_element_at(131072), 2.2836, 5e-5);  // as published for 128K
  EXPECT_DOUBLE_EQ(naive.bits_per_element_at(320), 16.0);
  EXPECT_EQ(naive.transform(0, Side::kKey), nullptr);
  EXPECT_EQ(naive.codec(2, Side::kValue, 1).clip, 0.0f);
  EXPECT_EQ(naive.codec(2, Side::kValue, 1).encoder, Encoder::kMinMax);
  const KvMethod hadamard = make_method("hadamard2", model_of(80), nullptr, {});
  ASSERT_NE(hadamard.transform(2, Side::kKey), nullptr);
  EXPECT_TRUE(at::equal(hadamard.transform(2, Side::kKey)->forward, hadamard_side(80).forward));
  EXPECT_EQ(hadamard.codec(0, Side::kKey, 0).clip, 0.0f);
  EXPECT_THAT(method_ids(), ::testing::IsSupersetOf({"bf16", "naive2", "hadamard2", "oscar", "kivi2"}));
}

TEST(Method, BundlesBringTransformsClipsGroupAndEncoder) {
  const ModelConfig model = model_of();
  const Bundle bundle = bundle_for(model, "oscar");
  const KvMethod method = make_method("oscar", model, &bundle, {32, 128, 8});
  EXPECT_EQ(method.windows.flush, 8);
  EXPECT_DOUBLE_EQ(method.bits_per_element(), 2.5);  // two groups
  const RowCodec value = method.codec(1, Side::kValue, 1);
  EXPECT_EQ(value.clip, 0.8f);
  EXPECT_EQ(value.side, Side::kValue);
  EXPECT_EQ(value.encoder, Encoder::kSearch);
  EXPECT_EQ(value.code.quant_group, 64);
  EXPECT_EQ(method.codec(1, Side::kKey, 1).clip, 0.96f);  // one clip for all heads
}

TEST(Method, BundlesBringBlockWidths) {
  const ModelConfig model = model_of();
  Bundle bundle = bundle_for(model, "waterfill");
  bundle.quant_group = 0;
  for (LayerTransform& layer : bundle.layers) {
    layer.key.widths = {4, 2, 1, 1}, layer.key.sigma = at::full({2, 4}, 1.5f);
    layer.value.widths = {1, 0, 0, 0}, layer.value.sigma = at::ones({2, 4});
  }
  bundle.layers[1].value.widths.clear();  // a layer may mix layouts
  bundle.layers[1].value.sigma = at::Tensor();
  const KvMethod method = make_method("waterfill", model, &bundle, {});
  EXPECT_EQ(method.codec(0, Side::kKey, 1).code, band_code(128, {4, 2, 1, 1}));
  EXPECT_EQ(method.codec(0, Side::kKey, 1).sigma[3], 1.5f);
  EXPECT_EQ(method.codec(0, Side::kKey, 1).encoder, Encoder::kSearch);
  EXPECT_EQ(method.codec(1, Side::kValue, 0).code, uniform_code(128));
  // Keys 2.25 in all layers, values (32 + 8) / 128 in two layers and 2.25 in one.
  EXPECT_DOUBLE_EQ(method.bits_per_element(), (3 * 2.25 + 2 * 0.3125 + 2.25) / 6);
}

TEST(Method, LayersThatABundleLeavesOutAreExact) {
  ModelConfig model = model_of();
  model.sliding_window = {0, 100, 0};
  const Bundle whole = bundle_for(model, "oscar");
  Bundle bundle = whole;
  bundle.layers.erase(bundle.layers.begin() + 1);
  bundle.model["left_out"] = Json::parse(R"([{"layer": 1, "reason": "a window"}])");
  const KvMethod method = make_method("oscar", model, &bundle, {32, 128, 1});
  EXPECT_TRUE(method.quantized_at(0) && !method.quantized_at(1) && method.quantized_at(2));
  EXPECT_EQ(method.transform(1, Side::kKey), nullptr);
  EXPECT_EQ(method.transform(2, Side::kKey)->clip, bundle.layers[1].key.clip);
  EXPECT_EQ(method.codec(2, Side::kValue, 1).clip, 0.8f);
  EXPECT_EQ(method.codec(1, Side::kValue, 1).clip, 0.0f);
  EXPECT_EQ(method.held_layers(model), 2);
  const KvMethod all = make_method("oscar", model, &whole, {32, 128, 1});
  EXPECT_DOUBLE_EQ(method.bits_per_element(), all.bits_per_element());
  // Two of three layers, and 100 tokens of BF16 keys and values in the third.
  EXPECT_EQ(3 * held_bytes(method, model, 4096), 2 * allocated_bytes(all, model, 4096));
  EXPECT_EQ(allocated_bytes(method, model, 4096), held_bytes(method, model, 4096) + 100 * 2 * 2 * 2 * 128);
  EXPECT_THAT(message_of<InputError>([&] {
                make_method("oscar", model, &bundle, {32, 99, 1});
              }),
              HasSubstr("leaves out layer 1, whose queries see 100 tokens: more than a recent window of 99"));
}

TEST(Method, BundlesOfOtherNames) {
  const ModelConfig model = model_of();
  const Bundle published = bundle_for(model, "published"), own = bundle_for(model, "balanced");
  EXPECT_EQ(make_method("oscar", model, &published, {}).id, "oscar");
  EXPECT_EQ(make_method("balanced", model, &own, {}).layers.size(), 3u);
  EXPECT_THAT(message_of<UsageError>([&] { make_method("oscar", model, &own, {}); }), HasSubstr("'balanced'"));
}

TEST(Method, UnknownIdsListAndSuggest) {
  const ModelConfig model = model_of();
  const std::string message = message_of<UsageError>([&] { make_method("hadamrd2", model, nullptr, {}); });
  EXPECT_THAT(message, HasSubstr("did you mean 'hadamard2'?"));
  EXPECT_THAT(message, HasSubstr("bf16, naive2, hadamard2, oscar, balanced, waterfill, fp8"));
  EXPECT_THAT(message_of<UsageError>([&] { make_method("gptq", model, nullptr, {}); }), Not(HasSubstr("did you mean")));
  EXPECT_THAT(message_of<UsageError>([&] { make_method("", model, nullptr, {}); }), HasSubstr("known methods"));
}

TEST(Method, RefusesWhatCannotRun) {
  const ModelConfig model = model_of();
  EXPECT_THAT(message_of<UsageError>([&] { make_method("oscar", model, nullptr, {}); }), HasSubstr("needs a bundle"));
  EXPECT_THROW(make_method("naive2", model, nullptr, {-1, 256, 1}), UsageError);
  EXPECT_THROW(make_method("naive2", model, nullptr, {64, 256, 0}), UsageError);
  EXPECT_THROW(make_method("naive2", model_of(66), nullptr, {}), InputError);
  const Bundle wrong = bundle_for(model_of(64), "oscar");
  EXPECT_THAT(message_of<InputError>([&] { make_method("oscar", model, &wrong, {}); }), HasSubstr("head_dim"));
  Bundle missing = bundle_for(model, "oscar");
  missing.layers.erase(missing.layers.begin() + 1);
  EXPECT_THAT(message_of<InputError>([&] { make_method("oscar", model, &missing, {}); }), HasSubstr("layer"));
}

}  // namespace
}  // namespace oscar
