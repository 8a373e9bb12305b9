// KL from sampled logits against the KL over the whole vocabulary.
#include "curves/sampled_logits.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "curves/mean_divergence.h"
#include "support/paths.h"

namespace oscar {
namespace {

constexpr std::int64_t kSampledRows = 200;

class Sampled : public testing::Test {
 protected:
  Sampled()
      : checkpoint(Checkpoint::open(locate_model(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen2"))),
        decoder(checkpoint, {}) {
    at::manual_seed(3);
    // Flat and peaked rows: the logits grow with the norm of the hidden state.
    base.hidden =
        at::randn({kSampledRows, decoder.config().hidden}) * at::linspace(0.05, 1.5, kSampledRows).unsqueeze(1);
    step = at::randn_like(base.hidden);
  }
  Checkpoint checkpoint;
  Decoder decoder;
  DivergenceBaseline base;
  at::Tensor step;
};

TEST_F(Sampled, WeightsAreThoseOfTheVocabulary) {
  const SampledLogits sampled = sample_logits(decoder, base.hidden);
  const at::Tensor p = at::softmax(decoder.logits(base.hidden), -1);
  EXPECT_TRUE(at::allclose(sampled.weights.sum(-1), at::ones({kSampledRows})));
  const at::Tensor likely = std::get<0>(at::topk(p, kLikely, -1));
  EXPECT_TRUE(at::allclose(sampled.weights.narrow(-1, 0, kLikely), likely, 1e-4, 1e-7));
  EXPECT_TRUE(at::equal(at::take_along_dim(p, sampled.tokens, -1).narrow(-1, 0, kLikely), likely));
  // No likely token is drawn again, and tokens are drawn in proportion to their probability.
  const at::Tensor drawn = sampled.tokens.narrow(-1, kLikely, kDrawn);
  const at::Tensor least = likely.slice(-1, kLikely - 1);
  EXPECT_TRUE(at::take_along_dim(p, drawn, -1).le(least).all().item<bool>());
  const at::Tensor rest = p.sum(-1) - likely.sum(-1);
  const at::Tensor found = at::zeros_like(p).scatter_add_(-1, drawn, at::full({kSampledRows, kDrawn}, 1.0 / kDrawn));
  const at::Tensor expected = p.scatter(-1, std::get<1>(at::topk(p, kLikely, -1)), 0.0) / rest.unsqueeze(-1);
  // Over any range of tokens the share is right to one draw.
  EXPECT_LE((found.cumsum(-1) - expected.cumsum(-1)).abs().max().item<double>(), 1.5 / kDrawn);
}

TEST_F(Sampled, MeansAreNearThoseOfTheVocabulary) {
  std::vector<at::Tensor> versions;
  for (const double size : {0.0, 0.003, 0.1, 0.103, 1.0}) versions.push_back(base.hidden + size * step);
  const std::vector<double> whole = mean_divergences(decoder, base, versions, "test");
  const SampledLogits sampled = sample_logits(decoder, base.hidden);
  const std::vector<double> found = sampled_divergences(decoder, base.hidden, sampled, versions, "test");
  EXPECT_EQ(found[0], 0.0);
  for (std::size_t v = 1; v < versions.size(); ++v) EXPECT_NEAR(found[v], whole[v], 0.02 * whole[v]) << v;
  EXPECT_NEAR(found[3] / found[2], whole[3] / whole[2], 1e-3);  // all versions share the tokens
  versions[1][3][2] = std::nan("");
  EXPECT_ANY_THROW(sampled_divergences(decoder, base.hidden, sampled, versions, "test"));
}

}  // namespace
}  // namespace oscar
