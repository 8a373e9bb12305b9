#include "verify/cache_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cache_factory.h"

namespace oscar {
namespace {

constexpr std::int64_t kQueries = 8;      // compared with prefill
constexpr double kSurelyRounding = 0.01;  // a larger difference from prefill is compared without prefill's rounding

// |a - b| / |b|, in FP64 on the CPU.
double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor exact = b.to(at::kCPU, at::kDouble);
  const double norm = exact.norm().item<double>();
  return (a.to(at::kCPU, at::kDouble) - exact).norm().item<double>() / (norm > 0 ? norm : 1.0);
}

// What the cache's rows give these queries in FP32. Prefill on a GPU rounds the keys that it restores to BF16, and
// decode does not. Keys with means of hundreds (Qwen2.5) have logits of thousands, of which rounding takes several
// nats.
at::Tensor without_rounding(const KvMethod& method, const AttentionInput& input) {
  const std::int64_t tokens = input.k.size(0);
  const SequenceBatch batch{{0}, {tokens}, {0}};
  AttentionInput exact = input;
  exact.batch = &batch;
  exact.q = input.q.to(at::kFloat);
  exact.asked = at::arange(tokens - input.q.size(0), tokens, at::kLong);
  return SimulatedPrefillAttention(method).attend(exact);
}

AttentionInput tokens_of(const AttentionInput& input, const SequenceBatch& batch) {
  AttentionInput part = with_tokens(input, batch.starts[0], batch.lengths[0]);
  part.batch = &batch;
  return part;
}

}  // namespace

std::uint64_t LayerToCheck::bytes() const { return input.k.storage().nbytes() + input.v.storage().nbytes(); }

LayerToCheck layer_to_check(const AttentionInput& input, const at::Tensor& prefill) {
  const std::int64_t tokens = input.k.size(0), tail = std::min(kQueries, tokens);
  LayerToCheck layer{input, prefill.narrow(0, tokens - tail, tail).clone()};
  layer.input.batch = nullptr;
  for (at::Tensor* q : {&layer.input.q, &layer.input.q_rope}) {
    if (q->defined()) *q = q->narrow(0, tokens - tail, tail).clone();
  }
  return layer;
}

PageSample compared_pages(std::int64_t rows, std::int64_t place, std::int64_t most) {
  const std::int64_t step = std::max<std::int64_t>((rows + most - 1) / most, 1);
  return {place % step, step};
}

CacheChecker::CacheChecker(const KvMethod& method, const ModelConfig& model, at::Device device)
    : method_(method), model_(model), device_(device), pages_(cache_spec(method, model)) {}

void CacheChecker::check_layer(const LayerToCheck& layer) {
  const AttentionInput& input = layer.input;
  PagedAttention paged(method_, model_, device_);  // holds only this layer, which limits memory
  const std::int64_t tail = input.q.size(0), body = input.k.size(0) - tail;
  if (body > 0) {
    const SequenceBatch batch{{0}, {body}, {0}};
    paged.append(tokens_of(input, batch));
  }
  const SequenceBatch batch{{0}, {tail}, {body}};
  const at::Tensor read = paged.attend(tokens_of(input, batch));
  double error = relative_difference(read, layer.prefill);
  if (error > kSurelyRounding && input.k.scalar_type() == at::kBFloat16)
    error = relative_difference(read, without_rounding(method_, input));
  // std::max() would drop a NaN.
  check_.reader_error =
      std::isfinite(error) ? std::max(check_.reader_error, error) : std::numeric_limits<double>::max();

  for (const Side side : {Side::kKey, Side::kValue}) {
    if (side == Side::kValue && method_.rope_dim > 0) break;  // the same bytes as the keys
    const CacheWindows& windows = pages_.sides[side == Side::kKey ? 0 : 1].windows;
    const std::int64_t coded = (windows.quantized_end(input.k.size(0)) - windows.sink) * input.k.size(1),
                       rows = 2 * model_.kv_layers() * coded, place = 2 * input.layer + (side == Side::kKey ? 0 : 1);
    const StoredRows found =
        compare_read_rows(paged, method_, pages_, input, side, compared_pages(rows, place, kReadRows));
    check_.read += found.rows, check_.misread += found.differing;
    const StoredRows stored = compare_stored_rows(paged, method_, pages_, input, side, compared_pages(rows, place));
    check_.rows += stored.rows, check_.differing += stored.differing;
  }
  check_.allocated_bytes += paged.allocated_bytes();
}

}  // namespace oscar
