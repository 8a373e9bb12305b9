#include "statistics/statistics.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "checkpoint/safetensors.h"
#include "layout/left_out.h"
#include "statistics/layer_fields.h"
#include "statistics/random_statistics.h"
#include "statistics/windowed_layers.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || a.equal(b));
}

void expect_equal(const Statistics& a, const Statistics& b) {
  EXPECT_EQ(a.model_fingerprint, b.model_fingerprint);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.hidden, b.hidden);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  EXPECT_TRUE(same(a.embedding_energy, b.embedding_energy));
  EXPECT_TRUE(a.rope_frequency.equal(b.rope_frequency));
  EXPECT_EQ(a.rope_scale, b.rope_scale);
  EXPECT_EQ(a.attention_scale, b.attention_scale);
  EXPECT_EQ(a.max_position, b.max_position);
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    for (const MomentField& f : kMomentFields) {
      EXPECT_TRUE(same(a.layers[i].*f.tensor, b.layers[i].*f.tensor)) << f.name;
    }
    for (const RowField& f : kRowFields) EXPECT_TRUE(same(a.layers[i].*f.tensor, b.layers[i].*f.tensor)) << f.name;
    EXPECT_EQ(a.layers[i].row_priority, b.layers[i].row_priority);
    EXPECT_EQ(a.layers[i].row_position, b.layers[i].row_position);
    for (const EnergyField& f : kEnergyFields) {
      EXPECT_TRUE(same(a.layers[i].*f.tensor, b.layers[i].*f.tensor)) << f.name;
    }
  }
}

std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no InputError";
}

TEST(Statistics, SaveAndLoadRoundTrip) {
  TempDirectory dir;
  const Statistics s = random_statistics({});
  save_statistics(s, dir / "a.safetensors");
  expect_equal(load_statistics(dir / "a.safetensors"), s);
}

TEST(Statistics, LayersThatAreLeftOutKeepTheirNumbers) {
  TempDirectory dir;
  Statistics s = random_statistics({.layers = 3});
  s.left_out = {{0, "linear attention", {}}, {1, "linear attention", {}}, {3, "a window", {}}};
  save_statistics(s, dir / "a.safetensors");
  const SafetensorsFile file = SafetensorsFile::open(dir / "a.safetensors");
  EXPECT_EQ(file.find("layers.1.q_gram"), nullptr);
  for (const char* name : {"layers.2.q_gram", "layers.4.q_gram", "layers.5.k_sum", "rows.5.k"}) {
    EXPECT_NE(file.find(name), nullptr) << name;
  }
  const Statistics loaded = load_statistics(dir / "a.safetensors");
  expect_equal(loaded, s);
  ASSERT_EQ(loaded.left_out.size(), 3u);
  EXPECT_TRUE(loaded.left_out[2].layer == 3 && loaded.left_out[2].reason == "a window");
  EXPECT_TRUE(loaded.number(0) == 2 && loaded.number(1) == 4 && loaded.number(2) == 5 && loaded.model_layers() == 6);
  EXPECT_EQ(left_out_text(loaded.left_out), "layers 0, 1 (linear attention); layer 3 (a window)");
  Statistics other = random_statistics({.layers = 3, .seed = 2});
  EXPECT_THAT(message_of([&] { merge_statistics({s, other}); }), HasSubstr("layers 6 and 3"));
  other.left_out = {{0, "x", {}}, {1, "x", {}}, {2, "x", {}}};
  EXPECT_THAT(message_of([&] { merge_statistics({s, other}); }), HasSubstr("layer 2 and 3"));
  other.left_out = s.left_out;
  EXPECT_EQ(merge_statistics({s, other}).number(2), 5);
  other.left_out[2].layer = 6;
  EXPECT_THAT(message_of([&] { save_statistics(other, dir / "b.safetensors"); }),
              HasSubstr("layer 6 is left out of 6"));
}

TEST(Statistics, LayersThatReadAnothersCacheNameIt) {
  const Json written = left_out_json({{0, "linear attention", {}}, reads_another(3, 1)});
  EXPECT_EQ(written[1]["reads"], 1);
  EXPECT_FALSE(written[0].contains("reads"));
  const auto read = [](const Json& list) { return read_left_out({{"left_out", list}}, 5, "s"); };
  EXPECT_EQ(read(written)[1].reads, 1);
  EXPECT_FALSE(read(written)[0].reads.has_value());
}

TEST(Statistics, LayersInsideTheRecentWindowAreLeftOutByTheirNumbers) {
  Statistics s = random_statistics({.layers = 3});
  s.left_out = {{0, "linear attention", {}}};
  s.metadata = Json{{"geometry", Json::array({{{"layer", 1}, {"sliding_window", 16}},
                                              {{"layer", 2}, {"sliding_window", 0}},
                                              {{"layer", 3}, {"sliding_window", 17}}})}};
  EXPECT_TRUE(windowed_layers(s, {8, 15, 1}, "s").empty());
  const Statistics rest = without_layers(s, windowed_layers(s, {8, 16, 1}, "s"));
  EXPECT_EQ(left_out_text(rest.left_out),
            "layer 0 (linear attention); layer 1 (a window of 16 tokens, which stay in BF16)");
  ASSERT_EQ(rest.layers.size(), 2u);
  EXPECT_TRUE(rest.number(0) == 2 && rest.number(1) == 3 && rest.model_layers() == 4);
  EXPECT_TRUE(rest.layers[1].q_gram.equal(s.layers[2].q_gram));
  EXPECT_EQ(without_layers(rest, rest.left_out).layers.size(), 2u);  // they are gone already

  s.metadata["geometry"][1]["sliding_window"] = 5;
  EXPECT_THAT(message_of([&] {
                windowed_layers(s, {8, 17, 1}, "s");
              }),
              HasSubstr("no layer has anything to quantize: their windows of at most 17 tokens lie inside the recent "
                        "window of 17 tokens in BF16"));
  s.metadata["geometry"][1]["sliding_window"] = -1;
  EXPECT_THAT(message_of([&] { windowed_layers(s, {8, 17, 1}, "s"); }), HasSubstr("'sliding_window' is -1"));
  s.metadata["geometry"] = 3;
  EXPECT_THAT(message_of([&] { windowed_layers(s, {8, 17, 1}, "s"); }), HasSubstr("geometry"));
  s.metadata = Json();
  EXPECT_TRUE(windowed_layers(s, {8, 17, 1}, "s").empty());
}

TEST(Statistics, EqualContentGivesEqualBytes) {
  TempDirectory dir;
  save_statistics(random_statistics({}), dir / "a.safetensors");
  save_statistics(load_statistics(dir / "a.safetensors"), dir / "b.safetensors");
  EXPECT_TRUE(read_file(dir / "a.safetensors") == read_file(dir / "b.safetensors"));
}

TEST(Statistics, OptionalPartsMayBeAbsent) {
  TempDirectory dir;
  Statistics s = random_statistics({});
  s.embedding_energy = at::Tensor();
  s.metadata = Json();
  for (LayerMoments& layer : s.layers) {
    layer.rows_q = layer.rows_k = layer.rows_v = layer.residual_energy = at::Tensor();
    layer.row_priority.clear();
    layer.row_position.clear();
  }
  save_statistics(s, dir / "a.safetensors");
  const Statistics back = load_statistics(dir / "a.safetensors");
  EXPECT_FALSE(back.layers[0].rows_q.defined() || back.embedding_energy.defined());
  EXPECT_TRUE(back.layers[1].q_gram.equal(s.layers[1].q_gram));
}

TEST(Statistics, MergeAddsSumsAndCounts) {
  const Statistics a = random_statistics({.tokens = 40, .seed = 1}), b = random_statistics({.tokens = 60, .seed = 2});
  const Statistics m = merge_statistics({a, b});
  EXPECT_EQ(m.tokens, 100);
  EXPECT_TRUE(m.layers[1].k_gram.equal(a.layers[1].k_gram + b.layers[1].k_gram));
  EXPECT_TRUE(m.layers[1].k_sum.equal(a.layers[1].k_sum + b.layers[1].k_sum));
  EXPECT_TRUE(m.layers[0].wo_gram.equal(a.layers[0].wo_gram));  // of the weights: not a sum
  EXPECT_EQ(m.layers[0].residual_energy[1].item<double>(), 100);
  EXPECT_EQ(m.layers[0].attention_residual[0][1].item<double>(), 100);
  EXPECT_TRUE(m.layers[1].pre_k_gram.equal(a.layers[1].pre_k_gram + b.layers[1].pre_k_gram));
  EXPECT_EQ(m.metadata["parts"].size(), 2u);
  EXPECT_NO_THROW(check_statistics(m, "merged"));
}

TEST(Statistics, MergedRowsAreTheBottomKOfTheUnion) {
  const Statistics a = random_statistics({.tokens = 40, .rows = 16, .seed = 1});
  const Statistics b = random_statistics({.tokens = 60, .rows = 16, .seed = 2});
  std::vector<std::uint64_t> all = a.layers[0].row_priority;
  all.insert(all.end(), b.layers[0].row_priority.begin(), b.layers[0].row_priority.end());
  std::sort(all.begin(), all.end());
  all.resize(16);
  const Statistics m = merge_statistics({a, b});
  EXPECT_EQ(m.layers[0].row_priority, all);
  // Each row still belongs to its priority.
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Statistics* from = nullptr;
    std::size_t at = 0;
    for (const Statistics* s : {&a, &b}) {
      const auto& p = s->layers[0].row_priority;
      const auto it = std::find(p.begin(), p.end(), all[r]);
      if (it != p.end()) from = s, at = it - p.begin();
    }
    ASSERT_NE(from, nullptr);
    EXPECT_TRUE(m.layers[1].rows_k[r].equal(from->layers[1].rows_k[at]));
    EXPECT_TRUE(m.layers[1].rows_q[r].equal(from->layers[1].rows_q[at]));
  }
}

TEST(Statistics, MergeOfSmallSamplesKeepsAllRows) {
  // Parts with fewer tokens than rows asked for hold every token; the merged sample may then grow.
  const Statistics m = merge_statistics({random_statistics({.tokens = 5, .rows = 16, .seed = 1}),
                                         random_statistics({.tokens = 6, .rows = 16, .seed = 2})});
  EXPECT_EQ(m.layers[0].row_priority.size(), 11u);
  const Statistics n = merge_statistics({random_statistics({.tokens = 50, .rows = 4, .seed = 1}),
                                         random_statistics({.tokens = 50, .rows = 16, .seed = 2})});
  EXPECT_EQ(n.layers[0].row_priority.size(), 4u);
}

TEST(Statistics, MergeDoesNotDependOnTheOrder) {
  TempDirectory dir;
  const Statistics a = random_statistics({.seed = 1}), b = random_statistics({.seed = 2});
  save_statistics(merge_statistics({a, b}), dir / "ab.safetensors");
  save_statistics(merge_statistics({b, a}), dir / "ba.safetensors");
  EXPECT_TRUE(read_file(dir / "ab.safetensors") == read_file(dir / "ba.safetensors"));
}

TEST(Statistics, MergeRefusesOtherModels) {
  const Statistics a = random_statistics({.seed = 1});
  Statistics b = random_statistics({.seed = 2});
  b.model_fingerprint = "v2:sha256:" + std::string(64, '0');
  EXPECT_THAT(message_of([&] { merge_statistics({a, b}); }), HasSubstr("fingerprint"));
  EXPECT_THAT(message_of([&] {
                merge_statistics({a, random_statistics({.layers = 3, .seed = 2})});
              }),
              HasSubstr("layers 2 and 3"));
  EXPECT_THAT(message_of([&] {
                merge_statistics({a, random_statistics({.head_dim = 16, .seed = 2})});
              }),
              HasSubstr("head_dim 8 and 16"));
}

TEST(Statistics, MergeRefusesTheSamePromptsTwice) {
  const Statistics a = random_statistics({.seed = 1});
  EXPECT_THAT(message_of([&] { merge_statistics({a, a}); }), HasSubstr("same prompt set"));
  EXPECT_EQ(merge_statistics({a, a}, {.same_prompts = true}).tokens, 2 * a.tokens);
  // Also when it hides inside an earlier merge.
  const Statistics m = merge_statistics({a, random_statistics({.seed = 2})});
  EXPECT_THAT(message_of([&] { merge_statistics({m, a}); }), HasSubstr("same prompt set"));
}

TEST(Statistics, MergeRefusesOtherPrecisionsUnlessTold) {
  Statistics a = random_statistics({.seed = 1}), b = random_statistics({.seed = 2});
  a.metadata["parts"][0]["options"] = {{"dtype", "float32"}};
  b.metadata["parts"][0]["options"] = {{"dtype", "bfloat16"}};
  const std::string refusal = message_of([&] { merge_statistics({a, b}); });
  EXPECT_THAT(refusal, AllOf(HasSubstr("float32 and bfloat16"), HasSubstr("--allow-mixed-dtypes")));
  EXPECT_EQ(merge_statistics({a, b}, {.mixed_dtypes = true}).tokens, a.tokens + b.tokens);
  b.metadata["parts"][0]["options"] = {{"dtype", "float32"}};
  EXPECT_NO_THROW(merge_statistics({a, b}));
}

TEST(Statistics, MergeRefusesPartsWithoutFarPairsUnlessTold) {
  Statistics a = random_statistics({.seed = 1});
  const Statistics b = random_statistics({.seed = 2});
  EXPECT_NO_THROW(merge_statistics({b, random_statistics({.seed = 3})}));  // none has any
  for (LayerMoments& layer : a.layers) layer.far_count = at::ones({1}, at::kDouble);
  EXPECT_THAT(message_of([&] {
                merge_statistics({a, b});
              }),
              AllOf(HasSubstr("part 2 of 2"), HasSubstr("--allow-missing-far-pairs")));
  EXPECT_TRUE(merge_statistics({b, a}, {.missing_far_pairs = true}).layers[0].far_count.defined());
}

}  // namespace
}  // namespace oscar
