// KL of changed hidden states against the same in FP64, row by row.
#include "curves/mean_divergence.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "curves/row_divergence.h"
#include "model/tiny_checkpoint.h"
#include "support/paths.h"
#include "support/temp_directory.h"
#include "verify/divergence.h"

namespace oscar {
namespace {

constexpr std::int64_t kRowCount = 70;

std::vector<double> expected_of(const Decoder& decoder, const at::Tensor& base,
                                const std::vector<at::Tensor>& versions) {
  std::vector<double> means;
  for (const at::Tensor& version : versions) {
    SequenceScores scores;
    BaselineRows(decoder.logits(base), std::vector<std::int32_t>(kRowCount, 5), "test")
        .score(decoder.logits(version), "test", scores);
    double sum = 0.0;
    for (const double kl : scores.kl) sum += kl;
    means.push_back(sum / static_cast<double>(kRowCount));
  }
  return means;
}

void expect_fp64(const Decoder& decoder, double tolerance) {
  at::manual_seed(3);
  DivergenceBaseline base{at::randn({kRowCount, decoder.config().hidden}), {}};
  const at::Tensor step = at::randn_like(base.hidden);
  std::vector<at::Tensor> versions;
  for (const double size : {0.0, 0.003, 0.1, 3.0}) versions.push_back(base.hidden + size * step);
  const std::vector<double> expected = expected_of(decoder, base.hidden, versions);
  const std::vector<double> found = mean_divergences(decoder, base, versions, "test");
  EXPECT_EQ(found[0], 0.0);
  for (std::size_t v = 1; v < found.size(); ++v) {
    EXPECT_NEAR(found[v], expected[v], tolerance * expected[v] + 1e-7) << v;
  }
  base.keep_probabilities(decoder);
  EXPECT_EQ(base.probabilities.size(1), decoder.config().vocabulary);
  const std::vector<double> kept = mean_divergences(decoder, base, versions, "test");
  for (std::size_t v = 0; v < found.size(); ++v) EXPECT_NEAR(kept[v], found[v], 1e-6 * found[v]) << v;
  versions[1][3][2] = std::nan("");
  EXPECT_ANY_THROW(mean_divergences(decoder, base, versions, "test"));
}

TEST(MeanDivergence, EqualsThatInFp64) {
  const Checkpoint checkpoint = Checkpoint::open(locate_model(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen2"));
  expect_fp64(Decoder(checkpoint, {}), 1e-3);
}

// With a cap the change of the logits is not what the cap makes of a difference.
TEST(MeanDivergence, OfCappedLogits) {
  TinyCheckpoint made;
  made.config["architectures"] = {"Gemma2ForCausalLM"};
  made.config["model_type"] = "gemma2";
  made.config["tie_word_embeddings"] = true;
  made.config["final_logit_softcapping"] = 2.0;
  made.tensors.erase("lm_head.weight");
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    made.tensors.erase(prefix + "self_attn.q_norm.weight"), made.tensors.erase(prefix + "self_attn.k_norm.weight");
    for (const char* name : {"pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"}) {
      made.tensors[prefix + name] = at::ones({24});
    }
  }
  TempDirectory dir;
  const Checkpoint checkpoint = made.write(dir.path());
  ASSERT_EQ(checkpoint.config().final_soft_cap, 2.0);
  expect_fp64(Decoder(checkpoint, {}), 1e-3);
}

// Any length of the vocabulary, and factors of the probabilities.
TEST(RowDivergence, EqualsTheDefinition) {
  at::manual_seed(5);
  for (const std::int64_t n : {1, 7, 16, 33, 1024, 5003}) {
    for (const double size : {1e-4, 1e-2, 1.0, 8.0}) {
      const at::Tensor logits = at::randn({n}), change = at::randn({n}).mul_(size), p = at::softmax(logits, 0);
      const at::Tensor wide = logits.to(at::kDouble), was = at::log_softmax(wide, 0);
      const at::Tensor now = at::log_softmax(wide + change.to(at::kDouble), 0);
      const double expected = (was.exp() * (was - now)).sum().item<double>();
      const double found = row_divergence(p.const_data_ptr<float>(), change.const_data_ptr<float>(), n);
      EXPECT_NEAR(found, expected, 2e-5 * expected + 3e-8 * size) << n << " of size " << size;
      const at::Tensor scaled = p * 0.25;
      EXPECT_NEAR(row_divergence(scaled.const_data_ptr<float>(), change.const_data_ptr<float>(), n), found,
                  1e-6 * found + 3e-8 * size);
    }
  }
}

TEST(RowDivergence, OfLogitsThatMoveAlikeIsZeroAndOfNaNIsNaN) {
  const at::Tensor p = at::full({40}, 1.0f / 40.0f);
  at::Tensor change = at::full({40}, 3.0f);
  EXPECT_NEAR(row_divergence(p.const_data_ptr<float>(), change.const_data_ptr<float>(), 40), 0.0, 1e-12);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    change[37] = bad;
    EXPECT_TRUE(std::isnan(row_divergence(p.const_data_ptr<float>(), change.const_data_ptr<float>(), 40))) << bad;
  }
}

}  // namespace
}  // namespace oscar
