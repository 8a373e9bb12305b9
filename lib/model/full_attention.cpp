// Causal attention of complete sequences. No tensor has size [T, T]: without a window, ATen's fused kernel tiles by
// itself. Otherwise, blocks of queries use only the keys in their window.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "model/attention.h"

namespace oscar {
namespace {

constexpr std::int64_t kQueryBlock = 512;
constexpr std::int64_t kScoreElements = std::int64_t{1} << 24;  // FP32 scores in memory at once on the explicit path

// [N T, H, d] -> [N, H, T, d], for N sequences of T tokens
at::Tensor heads_first(const at::Tensor& x, std::int64_t sequences) {
  return x.unflatten(0, {sequences, -1}).transpose(1, 2);
}

at::Tensor repeat_heads(const at::Tensor& x, std::int64_t gqa_group) {
  return gqa_group == 1 ? x : x.repeat_interleave(gqa_group, 1);
}

// The keys of [key_start, key_start + keys) that each query of the block may see: [queries, keys] bool.
at::Tensor visible(std::int64_t query_start, std::int64_t queries, std::int64_t key_start, std::int64_t keys,
                   std::int64_t window, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor i = at::arange(query_start, query_start + queries, options).unsqueeze(1);
  const at::Tensor j = at::arange(key_start, key_start + keys, options).unsqueeze(0);
  at::Tensor mask = j.le(i);
  if (window > 0) mask.logical_and_((i - j).lt(window));
  return mask;
}

// The first key that queries [start, start + count) can see.
std::int64_t first_key(std::int64_t start, std::int64_t window) {
  return window > 0 ? std::max<std::int64_t>(0, start - window + 1) : 0;
}

// cuDNN builds a plan for every sequence length, which takes tens of milliseconds, and prompts have many lengths.
// Attention is a small part of a layer, so the other fused kernels are sufficient.
void without_cudnn() {
  static const bool done = [] {
    at::globalContext().setSDPUseCuDNN(false);
    return true;
  }();
  static_cast<void>(done);
}

// N sequences of T tokens with plain softmax, using ATen's fused kernels. q [N T, Hq, d]; k, v [N T, Hkv, d].
at::Tensor fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t sequences, double scale,
                 std::int64_t window) {
  const std::int64_t tokens = q.size(0) / sequences, gqa_group = q.size(1) / k.size(1);
  const at::Tensor queries = heads_first(q, sequences);
  const at::Tensor keys = heads_first(repeat_heads(k, gqa_group), sequences);
  const at::Tensor values = heads_first(repeat_heads(v, gqa_group), sequences);
  if (window == 0) {
    if (q.is_cuda()) without_cudnn();
    return at::scaled_dot_product_attention(queries, keys, values, {}, 0.0, true, scale).transpose(1, 2).flatten(0, 1);
  }
  at::Tensor out = at::empty(q.sizes(), q.options());
  const at::Tensor rows = out.unflatten(0, {sequences, -1});  // [N, T, Hq, d]
  for (std::int64_t start = 0; start < tokens; start += kQueryBlock) {
    const std::int64_t count = std::min(kQueryBlock, tokens - start);
    const std::int64_t from = first_key(start, window), reach = start + count - from;
    const at::Tensor mask = visible(start, count, from, reach, window, q.device());
    const at::Tensor block =
        at::scaled_dot_product_attention(queries.narrow(2, start, count), keys.narrow(2, from, reach),
                                         values.narrow(2, from, reach), mask, 0.0, false, scale);
    rows.narrow(1, start, count).copy_(block.transpose(1, 2));
  }
  return out;
}

// One sequence with a soft cap (cap * tanh(s / cap)) or sink logits; explicit scores and softmax in FP32.
at::Tensor explicit_softmax(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionInput& input,
                            std::int64_t window) {
  const std::int64_t tokens = q.size(0), heads = q.size(1), gqa_group = heads / k.size(1);
  const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat).transpose(0, 1); };  // [H, T, d]
  const at::Tensor keys = wide(repeat_heads(k, gqa_group)), values = wide(repeat_heads(v, gqa_group));
  at::Tensor out = at::empty(q.sizes(), q.options());
  const std::int64_t widest = window > 0 ? std::min(tokens, window + kQueryBlock) : tokens;
  const std::int64_t block = std::clamp<std::int64_t>(kScoreElements / (heads * widest), 1, kQueryBlock);
  for (std::int64_t start = 0; start < tokens; start += block) {
    const std::int64_t count = std::min(block, tokens - start);
    const std::int64_t from = first_key(start, window), reach = start + count - from;
    at::Tensor scores = at::matmul(wide(q.narrow(0, start, count)), keys.narrow(1, from, reach).transpose(1, 2));
    scores.mul_(input.scale);
    if (input.soft_cap > 0.0) scores.div_(input.soft_cap).tanh_().mul_(input.soft_cap);
    const at::Tensor mask = visible(start, count, from, reach, window, q.device());
    scores.masked_fill_(mask.logical_not(), -std::numeric_limits<double>::infinity());
    at::Tensor weights;
    if (input.sinks.defined()) {
      const at::Tensor sinks = input.sinks.to(at::kFloat).view({heads, 1, 1}).expand({heads, count, 1});
      weights = at::softmax(at::cat({scores, sinks}, -1), -1).narrow(-1, 0, reach);
    } else {
      weights = at::softmax(scores, -1);
    }
    out.narrow(0, start, count).copy_(at::matmul(weights, values.narrow(1, from, reach)).transpose(0, 1));
  }
  return out;
}

// Successive pieces of one length that see only themselves: sequences, or their chunks.
struct Run {
  std::int64_t pieces = 0;
  std::int64_t tokens = 0;  // of a piece
};

// The pieces of a batch in order. together: equal ones share a run, because on a GPU short pieces do not fill a kernel.
std::vector<Run> runs_of(const SequenceBatch& batch, std::int64_t chunk, bool together) {
  std::vector<Run> runs;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    if (batch.starts[s] != 0) throw std::invalid_argument("FullAttention keeps no past tokens: starts must be 0");
    std::int64_t left = batch.lengths[s];
    while (left > 0) {
      const std::int64_t tokens = chunk > 0 ? std::min(chunk, left) : left;
      if (!together || runs.empty() || runs.back().tokens != tokens) runs.push_back({0, tokens});
      ++runs.back().pieces;
      left -= tokens;
    }
  }
  return runs;
}

}  // namespace

at::Tensor FullAttention::attend(const AttentionInput& input) {
  require_all_queries(input, "FullAttention");
  if (input.k_rope.defined()) return attend(with_rope(input));
  const std::int64_t d = input.v.size(2);
  const at::Tensor& values = input.k.size(2) == d ? input.v : input.k;  // fused kernels need one width: with_rope()
  const bool plain = input.soft_cap == 0.0 && !input.sinks.defined();
  const std::vector<Run> runs = runs_of(*input.batch, input.chunk, plain);
  at::Tensor out;
  std::int64_t offset = 0;
  for (const Run& run : runs) {
    const std::int64_t tokens = run.pieces * run.tokens;
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, offset, tokens); };
    // A window longer than a piece has no effect.
    const std::int64_t window = input.sliding_window < run.tokens ? input.sliding_window : 0;
    const at::Tensor made = plain ? fused(part(input.q), part(input.k), part(values), run.pieces, input.scale, window)
                                  : explicit_softmax(part(input.q), part(input.k), part(values), input, window);
    if (runs.size() == 1) return made.narrow(2, 0, d).contiguous();
    if (!out.defined()) out = at::empty(input.q.sizes(), input.q.options());
    part(out).copy_(made);
    offset += tokens;
  }
  return out.defined() ? out.narrow(2, 0, d) : at::empty_like(input.q);
}

}  // namespace oscar
