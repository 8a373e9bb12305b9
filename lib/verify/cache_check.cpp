#include "verify/cache_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace oscar {
namespace {

constexpr std::int64_t kQueries = 8;      // compared with full attention
constexpr double kSurelyRounding = 0.01;  // a difference up to this is not looked into
constexpr double kStretch = 0.83;         // turns numbers of BF16 into others, near in size

// |a - b| / |b|, in FP64 on the CPU.
double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor exact = b.to(at::kCPU, at::kDouble);
  const double norm = exact.norm().item<double>();
  return (a.to(at::kCPU, at::kDouble) - exact).norm().item<double>() / (norm > 0 ? norm : 1.0);
}

// How far it moves the outputs of these queries if keys as large as these are rounded to BF16, which prefill on a GPU
// does with the keys that it restores, and decode does not. Keys with means of hundreds (Qwen2.5) have logits of
// thousands, of which rounding takes several nats. The layer's own keys are BF16 already, so they are stretched first.
double rounding_of(const AttentionInput& input) {
  const std::int64_t tokens = input.k.size(0), tail = input.q.size(0);
  const SequenceBatch batch{{0}, {tokens}, {0}};
  AttentionInput exact = input;
  exact.batch = &batch;
  exact.asked = at::arange(tokens - tail, tokens, at::kLong);
  exact = with_all_queries(exact);
  exact.q = exact.q.to(at::kFloat), exact.v = input.v.to(at::kFloat), exact.k = input.k.to(at::kFloat).mul_(kStretch);
  AttentionInput rounded = exact;
  rounded.k = exact.k.to(at::kBFloat16).to(at::kFloat);
  FullAttention attention;
  const auto last = [&](const at::Tensor& x) { return x.narrow(0, tokens - tail, tail); };
  return relative_difference(last(attention.attend(rounded)), last(attention.attend(exact)));
}

AttentionInput tokens_of(const AttentionInput& input, const SequenceBatch& batch) {
  AttentionInput part = input;
  part.batch = &batch;
  part.k = input.k.narrow(0, batch.starts[0], batch.lengths[0]);
  part.v = input.v.narrow(0, batch.starts[0], batch.lengths[0]);
  return part;
}

}  // namespace

std::uint64_t LayerToCheck::bytes() const { return input.k.storage().nbytes() + input.v.storage().nbytes(); }

LayerToCheck layer_to_check(const AttentionInput& input, const at::Tensor& prefill) {
  const std::int64_t tokens = input.k.size(0), tail = std::min(kQueries, tokens);
  LayerToCheck layer{input, prefill.narrow(0, tokens - tail, tail).clone()};
  layer.input.batch = nullptr;
  layer.input.q = input.q.narrow(0, tokens - tail, tail).clone();
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
  double error = relative_difference(paged.attend(tokens_of(input, batch)), layer.prefill);
  if (error > kSurelyRounding && input.k.scalar_type() == at::kBFloat16 && error <= 2.0 * rounding_of(input))
    error = 0.0;
  // std::max() would drop a NaN.
  check_.reader_error =
      std::isfinite(error) ? std::max(check_.reader_error, error) : std::numeric_limits<double>::max();

  for (const Side side : {Side::kKey, Side::kValue}) {
    const CacheWindows& windows = pages_.sides[side == Side::kKey ? 0 : 1].windows;
    const std::int64_t coded = (windows.quantized_end(input.k.size(0)) - windows.sink) * input.k.size(1),
                       rows = 2 * model_.kv_layers() * coded, place = 2 * input.layer + (side == Side::kKey ? 0 : 1);
    const StoredRows read =
        compare_read_rows(paged, method_, pages_, input, side, compared_pages(rows, place, kReadRows));
    check_.read += read.rows, check_.misread += read.differing;
    const StoredRows stored = compare_stored_rows(paged, method_, pages_, input, side, compared_pages(rows, place));
    check_.rows += stored.rows, check_.differing += stored.differing;
  }
  check_.allocated_bytes += paged.allocated_bytes();
}

}  // namespace oscar
