#include "collect/far_pairs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "collect/accumulator.h"

namespace oscar {
namespace {

struct Case {
  std::vector<std::int64_t> lengths;
  std::int64_t heads = 4, kv_heads = 2, d = 8, hidden = 24, window = 0;
  FarPairs pairs{3, 5, true};
  bool sinks = false;
  std::int64_t chunk = 0;

  std::int64_t first(std::int64_t i) const {  // key that query i sees
    return chunk > 0 ? i / chunk * chunk : window > 0 ? std::max<std::int64_t>(0, i - window + 1) : 0;
  }
};

struct Problem {
  SequenceBatch batch;
  AttentionInput input;
  at::Tensor output, o_weight;
  Unrotation::Rows rows;  // random turns: queries before RoPE are whatever these make of them
};

void fill(Problem& p, const Case& c) {
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < c.lengths.size(); ++i) {
    p.batch.ids.push_back(static_cast<std::int64_t>(i));
    p.batch.starts.push_back(0);
    tokens += c.lengths[i];
  }
  p.batch.lengths = c.lengths;
  p.input.batch = &p.batch;
  p.input.q = at::randn({tokens, c.heads, c.d}) * 1.5;
  p.input.k = at::randn({tokens, c.kv_heads, c.d}) + 1.0;
  p.input.v = at::randn({tokens, c.kv_heads, c.d});
  p.input.scale = 0.35;
  p.input.sliding_window = c.window;
  p.input.chunk = c.chunk;
  if (c.sinks) p.input.sinks = at::randn({c.heads});
  FullAttention attention;
  p.output = attention.attend(p.input);
  p.o_weight = at::randn({c.hidden, c.heads * c.d});
  const at::Tensor angles = at::randn({tokens, c.d / 2}) * 3.0;
  p.rows = {angles.cos(), angles.sin()};
}

// The definition, pair by pair, in FP64.
LayerMoments direct(const Problem& p, const Case& c) {
  LayerMoments out;
  out.far_q_gram = at::zeros({c.kv_heads, c.d, c.d}, at::kDouble);
  out.far_v_weight = out.far_q_gram.clone();
  out.far_pre_q_gram = out.far_q_gram.clone();
  double queries = 0.0, pairs = 0.0;
  const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
  std::int64_t offset = 0;
  for (const std::int64_t length : c.lengths) {
    // Every n-th query stands for n, as their number has it.
    const std::int64_t start = c.pairs.sink + c.pairs.recent, step = c.pairs.query_step(length, at::kCPU);
    const auto all = static_cast<double>(length - start);
    const double meant = step > 1 ? all / static_cast<double>((length - start - 1) / step + 1) : 1.0;
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const std::int64_t kv = h / (c.heads / c.kv_heads);
      const at::Tensor weight = wide(p.o_weight.narrow(1, h * c.d, c.d)), gram = at::matmul(weight.t(), weight);
      const at::Tensor k = wide(p.input.k.narrow(0, offset, length).select(1, kv));
      const at::Tensor v = wide(p.input.v.narrow(0, offset, length).select(1, kv));
      for (std::int64_t i = 0; i < length; ++i) {
        const at::Tensor q = wide(p.input.q[offset + i][h]);
        const std::int64_t from = c.first(i);
        if ((i - start) % step != 0) {
          const std::int64_t count = std::max<std::int64_t>(0, i - c.pairs.recent + 1 - std::max(c.pairs.sink, from));
          if (h == 0) queries += count > 0 ? 1.0 : 0.0, pairs += static_cast<double>(count);
          continue;
        }
        at::Tensor logits = at::mv(k.narrow(0, from, i + 1 - from), q) * p.input.scale;
        if (c.sinks) logits = at::cat({logits, wide(p.input.sinks[h]).view({1})});
        const at::Tensor weights = at::softmax(logits, 0);
        const at::Tensor o = at::mv(v.narrow(0, from, i + 1 - from).t(), weights.narrow(0, 0, i + 1 - from));
        double moved = 0.0, seen = 0.0, count = 0.0;
        for (std::int64_t j = std::max(c.pairs.sink, from); j <= i - c.pairs.recent; ++j) {
          const double w = weights[j - from].item<double>();
          moved += w * w * at::mv(weight, v[j] - o).square().sum().item<double>();
          seen += w * w;
          count += 1.0;
        }
        if (h == 0) queries += count > 0.0 ? 1.0 : 0.0, pairs += count;
        moved *= meant, seen *= meant;
        out.far_q_gram[kv] += moved * p.input.scale * p.input.scale * at::outer(q, q);
        const at::Tensor before =
            wide(undo_rope(p.input.q[offset + i][h], p.rows.cos[offset + i], p.rows.sin[offset + i]));
        out.far_pre_q_gram[kv] += moved * p.input.scale * p.input.scale * at::outer(before, before);
        out.far_v_weight[kv] += seen * gram;
      }
    }
    offset += length;
  }
  out.far_count = at::tensor({queries, pairs}, at::kDouble);
  return out;
}

LayerMoments streamed(const Problem& p, const Case& c) {
  FarPairAccumulator accumulator(c.heads, c.kv_heads, c.d, c.pairs, at::kCPU);
  accumulator.begin_layer(p.o_weight);
  accumulator.add(p.input, p.output, p.rows);
  LayerMoments out;
  accumulator.finish(out);
  return out;
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm().clamp_min(1e-300)).item<double>();
}

TEST(FarPairs, EqualsTheDefinition) {
  at::manual_seed(1);
  const std::vector<Case> cases = {{.lengths = {40}},
                                   {.lengths = {9, 30, 1, 8, 25}, .heads = 6, .kv_heads = 3},
                                   {.lengths = {50}, .window = 12},
                                   {.lengths = {50, 21}, .chunk = 11},
                                   {.lengths = {30, 31}, .pairs = {0, 1, true}, .sinks = true},
                                   // Several blocks of queries, whose first keys no query of the block sees.
                                   {.lengths = {700}, .window = 100},
                                   {.lengths = {640, 300}, .chunk = 90},
                                   {.lengths = {530}, .window = 12, .pairs = {3, 40, true}},
                                   {.lengths = {600}, .window = 64, .pairs = {5, 20, true}, .sinks = true},
                                   // Some of the queries.
                                   {.lengths = {700, 60}, .pairs = {3, 5, true, 50}},
                                   {.lengths = {703}, .window = 100, .pairs = {3, 40, true, 60}, .sinks = true},
                                   {.lengths = {640}, .pairs = {3, 5, true, 100}, .chunk = 90}};
  for (const Case& c : cases) {
    Problem p;
    fill(p, c);
    const LayerMoments found = streamed(p, c), expected = direct(p, c);
    EXPECT_LT(relative(found.far_q_gram, expected.far_q_gram), 1e-4);
    EXPECT_LT(relative(found.far_pre_q_gram, expected.far_pre_q_gram), 1e-4);
    EXPECT_LT(relative(found.far_v_weight, expected.far_v_weight), 1e-5);
    EXPECT_TRUE(found.far_count.equal(expected.far_count)) << found.far_count << expected.far_count;
  }
}

TEST(FarPairs, EvenAttentionHasAClosedForm) {
  // Equal keys: p_ij = 1 / (i + 1). Equal values: o = v, so nothing moves and the keys carry no weight.
  const Case c{.lengths = {20}, .heads = 1, .kv_heads = 1};
  Problem p;
  fill(p, c);
  p.input.k.fill_(0.5);
  p.input.v.fill_(2.0);
  p.output.fill_(2.0);
  const LayerMoments found = streamed(p, c);
  double seen = 0.0;
  for (int i = 8; i < 20; ++i) seen += (i - 5 - 3 + 1) / ((i + 1.0) * (i + 1.0));
  EXPECT_LT(relative(found.far_v_weight, output_projection_gram(p.o_weight, 1, 8) * seen), 1e-6);
  EXPECT_LT(found.far_q_gram.abs().max().item<double>(), 1e-4);
}

TEST(FarPairs, ShortSequencesHaveNoFarPairs) {
  at::manual_seed(2);
  const Case c{.lengths = {8, 3, 8}};
  Problem p;
  fill(p, c);
  const LayerMoments found = streamed(p, c);
  EXPECT_EQ(found.far_count.abs().sum().item<double>(), 0.0);
  EXPECT_EQ(found.far_q_gram.abs().sum().item<double>(), 0.0);
}

}  // namespace
}  // namespace oscar
