// Layers of linear attention: whole sequences, sequences in pieces and token by token are one thing, and sequences of a
// batch do not meet.
#include "model/gated_delta_net.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace oscar {
namespace {

ModelConfig tiny_config() {
  ModelConfig config;
  config.layers = 3, config.hidden = 24;
  config.linear = {
      .key_heads = 2, .value_heads = 6, .key_dim = 5, .value_dim = 7, .kernel = 4, .layers = {true, false, true}};
  return config;
}

LayerWeights random_weights(const ModelConfig& config) {
  const LinearAttention& l = config.linear;
  LayerWeights w;
  w.linear_qkv = at::randn({l.channels(), config.hidden}) * 0.3;
  w.linear_z = at::randn({l.values(), config.hidden}) * 0.3;
  w.linear_beta = at::randn({l.value_heads, config.hidden}) * 0.3;
  w.linear_decay = at::randn({l.value_heads, config.hidden}) * 0.3;
  w.linear_conv = at::randn({l.channels(), 1, l.kernel});
  w.linear_decay_bias = at::randn({l.value_heads});
  w.linear_log_rate = at::randn({l.value_heads}) - 2.0;
  w.linear_norm = at::rand({l.value_dim}) + 0.5;
  w.linear_out = at::randn({config.hidden, l.values()}) * 0.3;
  return w;
}

class GatedDeltaNet : public testing::Test {
 protected:
  GatedDeltaNet() : config(tiny_config()) {
    at::manual_seed(7);
    weights = random_weights(config);
    x = at::randn({200, config.hidden});
  }
  at::Tensor run(const at::Tensor& rows, const SequenceBatch& batch, RecurrentStates* states = nullptr) const {
    return gated_delta_net(config, 0, weights, rows, batch, states);
  }

  ModelConfig config;
  LayerWeights weights;
  at::Tensor x;
};

TEST_F(GatedDeltaNet, PiecesAreTheWhole) {
  const at::Tensor whole = run(x, {{0}, {200}, {0}});
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{1, 199}, {64, 64, 72}, {63, 2, 135}, {100, 3, 1, 1, 95}}) {
    RecurrentStates states;
    std::int64_t start = 0;
    for (const std::int64_t count : cuts) {
      const at::Tensor part = run(x.narrow(0, start, count), {{4}, {count}, {start}}, &states);
      EXPECT_TRUE(at::allclose(part, whole.narrow(0, start, count), 1e-4, 1e-5)) << start << " " << count;
      start += count;
    }
  }
}

TEST_F(GatedDeltaNet, TokenByTokenInABatchIsTheWhole) {
  RecurrentStates states;
  std::vector<at::Tensor> first, second;
  for (std::int64_t t = 0; t < 70; ++t) {
    const at::Tensor out = run(at::stack({x[t], x[t + 100]}), {{3, 8}, {1, 1}, {t, t}}, &states);
    first.push_back(out[0]), second.push_back(out[1]);
  }
  EXPECT_TRUE(at::allclose(at::stack(first), run(x.narrow(0, 0, 70), {{0}, {70}, {0}}), 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(at::stack(second), run(x.narrow(0, 100, 70), {{0}, {70}, {0}}), 1e-4, 1e-5));
}

TEST_F(GatedDeltaNet, SequencesOfABatchDoNotMeet) {
  const at::Tensor packed = run(x, {{0, 1, 2, 3}, {50, 50, 30, 70}, {0, 0, 0, 0}});
  std::int64_t row = 0;
  for (const std::int64_t length : {50, 50, 30, 70}) {
    EXPECT_TRUE(
        at::allclose(packed.narrow(0, row, length), run(x.narrow(0, row, length), {{0}, {length}, {0}}), 1e-4, 1e-5));
    row += length;
  }
}

TEST_F(GatedDeltaNet, LaterTokensChangeNothing) {
  at::Tensor changed = x.clone();
  changed.narrow(0, 120, 80).fill_(3.0);
  const at::Tensor before = run(x, {{0}, {200}, {0}}), after = run(changed, {{0}, {200}, {0}});
  EXPECT_TRUE(at::allclose(after.narrow(0, 0, 120), before.narrow(0, 0, 120), 1e-5, 1e-6));
  EXPECT_FALSE(at::allclose(after[120], before[120], 1e-2, 1e-2));
}

TEST_F(GatedDeltaNet, ASequenceStartsWhereItsStateEnds) {
  EXPECT_THROW(run(x.narrow(0, 0, 5), {{0}, {5}, {3}}), std::invalid_argument);  // nothing is kept
  RecurrentStates states;
  run(x.narrow(0, 0, 5), {{0}, {5}, {0}}, &states);
  EXPECT_THROW(run(x.narrow(0, 0, 1), {{0}, {1}, {4}}, &states), std::invalid_argument);
  EXPECT_THROW(run(x.narrow(0, 0, 1), {{1}, {1}, {5}}, &states), std::invalid_argument);
  const at::Tensor anew = run(x.narrow(0, 0, 5), {{0}, {5}, {0}}, &states);  // at 0 it begins again
  EXPECT_TRUE(at::equal(anew, run(x.narrow(0, 0, 5), {{0}, {5}, {0}})));
  states.release(0);
  EXPECT_THROW(run(x.narrow(0, 0, 1), {{0}, {1}, {5}}, &states), std::invalid_argument);
}

TEST_F(GatedDeltaNet, LayersAreCountedByTheirCaches) {
  EXPECT_EQ(config.kv_layers(), 1);
  EXPECT_EQ(config.kv_layer(0), 1);
  EXPECT_EQ(config.kv_place(1), 0);
  EXPECT_FALSE(config.holds_kv(2));
  EXPECT_THROW(config.kv_layer(1), std::out_of_range);
}

}  // namespace
}  // namespace oscar
