#include "verify/layer_error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "runtime/basis.h"

namespace oscar {
namespace {

constexpr std::int64_t kSampledQueries = 64;

// decode(encode(k)) of tokens [begin, end), in the basis of the cache: [end - begin, Hkv, d].
at::Tensor quantised_keys(const at::Tensor& k, const KvMethod& method, std::int64_t layer, std::int64_t begin,
                          std::int64_t end) {
  at::Tensor rows =
      cache_rows(k.narrow(0, begin, end - begin), method.transform(layer, Side::kKey)).to(at::kFloat).contiguous();
  const std::int64_t heads = rows.size(1), d = rows.size(2);
  for (std::int64_t h = 0; h < heads; ++h) {
    float* data = rows.mutable_data_ptr<float>() + h * d;
    quantise_rows(method.codec(layer, Side::kKey, h), data, end - begin, heads * d, data, heads * d);
  }
  return rows;
}

// [Q, Hq, d] x [K, Hkv, d] -> [Hkv, g, Q, K]
at::Tensor head_logits(const at::Tensor& q, const at::Tensor& k) {
  const std::int64_t queries = q.size(0), kv_heads = k.size(1), group = q.size(1) / kv_heads, d = q.size(2);
  const at::Tensor by_head = q.view({queries, kv_heads, group, d}).permute({1, 2, 0, 3});
  return at::matmul(by_head, k.permute({1, 2, 0}).unsqueeze(1));
}

// x less each row's mean over its visible columns, zero elsewhere. visible: [Q, K] of 0 and 1.
at::Tensor centred(const at::Tensor& x, const at::Tensor& visible) {
  const at::Tensor mean = (x * visible).sum(-1, true) / visible.sum(-1, true);
  return (x - mean) * visible;
}

double square_sum(const at::Tensor& x) { return x.to(at::kDouble).square().sum().item<double>(); }

double relative(double error, double energy) { return energy > 0 ? std::sqrt(error / energy) : 0.0; }

}  // namespace

LayerError LayerErrorSums::result(std::int64_t layer) const {
  return {layer, relative(logit_error, logit_energy), relative(output_error, output_energy)};
}

void add_logit_error(const AttentionInput& input, const KvMethod& method, LayerErrorSums& sums) {
  const std::int64_t tokens = input.k.size(0), begin = method.windows.sink, end = method.windows.quantised_end(tokens);
  if (!method.quantised || end <= begin) return;
  // Queries whose quantised range holds at least two keys: with one there is nothing left beside the mean.
  std::vector<std::int64_t> positions;
  const std::int64_t first = begin + method.windows.recent + 1;
  const std::int64_t stride = std::max<std::int64_t>(1, (tokens - first) / kSampledQueries);
  for (std::int64_t p = tokens - 1; p >= first && std::ssize(positions) < kSampledQueries; p -= stride) {
    if (method.windows.quantised_end(p + 1) >= begin + 2) positions.push_back(p);
  }
  if (positions.empty()) return;

  const at::Tensor index = at::tensor(positions, at::kLong);
  const at::Tensor q = input.q.to(at::kCPU).index_select(0, index).to(at::kFloat).contiguous();
  const at::Tensor k = input.k.to(at::kCPU, at::kFloat);
  const at::Tensor exact = head_logits(q, k.narrow(0, begin, end - begin));
  const at::Tensor rotated = rotate_queries(q, method.transform(input.layer, Side::kKey), k.size(1));
  const at::Tensor stored = head_logits(rotated, quantised_keys(k, method, input.layer, begin, end));

  at::Tensor visible = at::zeros({std::ssize(positions), end - begin}, at::kFloat);
  for (std::int64_t i = 0; i < std::ssize(positions); ++i) {
    const std::int64_t p = positions[static_cast<std::size_t>(i)];
    std::int64_t from = 0;
    if (input.sliding_window > 0) from = std::max<std::int64_t>(0, p - input.sliding_window + 1 - begin);
    const std::int64_t to = method.windows.quantised_end(p + 1) - begin;
    if (from < to) visible.select(0, i).narrow(0, from, to - from).fill_(1.0f);
  }
  const at::Tensor some = visible.sum(-1).gt(1.5).nonzero().squeeze(1);
  if (some.numel() == 0) return;
  visible = visible.index_select(0, some);
  const at::Tensor exact_seen = exact.index_select(2, some);
  sums.logit_error += square_sum(centred(stored.index_select(2, some) - exact_seen, visible));
  sums.logit_energy += square_sum(centred(exact_seen, visible));
}

void add_output_error(const at::Tensor& exact, const at::Tensor& method, std::int64_t first, LayerErrorSums& sums) {
  const std::int64_t count = exact.size(0) - first;
  if (count <= 0) return;
  const at::Tensor o = exact.narrow(0, first, count).to(at::kDouble);
  sums.output_error += square_sum(method.narrow(0, first, count).to(at::kDouble) - o);
  sums.output_energy += square_sum(o);
}

}  // namespace oscar
