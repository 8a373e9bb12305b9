#include "attention/begin_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "attention/basis.h"
#include "base/parallel.h"
#include "cache/row_loops.h"
#include "model/rope_phases.h"

namespace oscar {
namespace {

// fast_kernel_fault() keeps models with a soft cap or sink logits on the CPU.
void check_kernel_means(const KvMethod& method, const AttentionInput& input) {
  const SideTransform *key = method.transform(input.layer, Side::kKey),
                      *value = method.transform(input.layer, Side::kValue);
  const bool has_sinks = input.sinks.defined(), bounded = input.soft_cap > 0.0 || has_sinks;
  if ((key != nullptr && key->mean.defined() && !key->rotated_mean && bounded) ||
      (value != nullptr && value->mean.defined() && has_sinks)) {
    throw std::invalid_argument("the configuration of the model names no soft cap and no sink logits");
  }
}

// Runs parts on several threads, at least `least` parts per thread.
KvCache::ForEachPart in_threads(std::int64_t least) {
  return [least](std::int64_t parts, const std::function<void(std::int64_t)>& code) {
    parallel_ranges(parts, least, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) code(i);
    });
  };
}

// For keys with a rotated mean. q: on the CPU.
void add_positions(BegunStep& step, const KvMethod& method, const AttentionInput& input, const at::Tensor& q) {
  const SideTransform* key = method.transform(input.layer, Side::kKey);
  if (key == nullptr || !key->rotated_mean) return;
  step.positions = phase_queries(q, key->mean).contiguous();
  std::int64_t end = 0;
  for (std::size_t s = 0; s < input.batch->lengths.size(); ++s) {
    end = std::max(end, input.batch->starts[s] + input.batch->lengths[s]);
  }
  step.rope_phases = method.rope_phases->rows(0, end);
}

}  // namespace

void check_starts(const AttentionInput& input, const std::function<std::int64_t(std::int64_t)>& held) {
  const SequenceBatch& batch = *input.batch;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    const std::int64_t tokens = held(batch.ids[s]);
    if (batch.starts[s] == tokens) continue;
    throw std::invalid_argument("sequence " + std::to_string(batch.ids[s]) + " starts at token " +
                                std::to_string(batch.starts[s]) + ", the cache of layer " +
                                std::to_string(input.layer) + " holds " + std::to_string(tokens));
  }
}

at::Tensor transformed_rows(const at::Tensor& rows, const SideTransform* side, const at::Tensor& rope_phases) {
  if (side == nullptr) return rows.to(at::kCPU, at::kBFloat16).contiguous();
  const auto plain = [](const at::Tensor& x) { return x.to(at::kCPU, at::kFloat).contiguous(); };
  const at::Tensor forward = plain(side->forward);
  at::Tensor x = plain(rows), mean = side->mean.defined() ? plain(side->mean) : at::Tensor();
  if (side->rotated_mean) {
    if (!rope_phases.defined()) throw std::logic_error("transformed_rows needs the rope_phases of the tokens");
    x = (x - rotated_means(mean, rope_phases)).contiguous();
    mean = at::Tensor();
  }
  const std::int64_t tokens = x.size(0), heads = x.size(1), d = x.size(2);
  at::Tensor out = at::empty({tokens, heads, d}, x.options().dtype(at::kBFloat16));
  const auto *source = x.const_data_ptr<float>(), *matrices = forward.const_data_ptr<float>();
  const float* means = mean.defined() ? mean.const_data_ptr<float>() : nullptr;
  const bool shared = forward.size(0) == 1;
  auto* target = reinterpret_cast<std::uint16_t*>(out.data_ptr<at::BFloat16>());
  constexpr std::int64_t kRows = 64;
  const std::int64_t blocks = (tokens + kRows - 1) / kRows;
  const std::int64_t item = std::max<std::int64_t>(std::min(kRows, tokens) * d * d, 1);
  const std::int64_t grain = std::max<std::int64_t>((std::int64_t{1} << 20) / item, 1);  // no threads for a few rows
  parallel_ranges(blocks * heads, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t head = i % heads, first = i / heads * kRows, at = (first * heads + head) * d;
      const float* matrix = matrices + (shared ? 0 : head * d * d);
      const float* center = means != nullptr ? means + head * d : nullptr;
      rotate_rows(source + at, std::min(kRows, tokens - first), heads * d, center, matrix, static_cast<int>(d),
                  target + at, heads * d);
    }
  });
  return out;
}

at::Tensor new_rows(const KvMethod& method, const AttentionInput& input, Side side) {
  const SideTransform* transform = method.transform(input.layer, side);
  const at::Tensor& rows = side == Side::kKey ? input.k : input.v;
  if (transform == nullptr || !transform->rotated_mean) return transformed_rows(rows, transform);
  std::vector<at::Tensor> rope_phases;
  for (std::size_t s = 0; s < input.batch->lengths.size(); ++s) {
    rope_phases.push_back(method.rope_phases->rows(input.batch->starts[s], input.batch->lengths[s]));
  }
  return transformed_rows(rows, transform, at::cat(rope_phases));
}

NewRows new_rows(const KvMethod& method, const AttentionInput& input) {
  if (method.rope_dim > 0) return {new_rows(method, input, Side::kKey), {}, transformed_rows(input.k_rope, nullptr)};
  return {new_rows(method, input, Side::kKey), new_rows(method, input, Side::kValue), {}};
}

at::Tensor kernel_rows(const at::Tensor& x, at::Device device) {
  return (x.scalar_type() == at::kBFloat16 ? x.to(device) : x.to(device, at::kFloat)).contiguous();
}

BegunStep begin_step(const KvMethod& method, const AttentionInput& input, at::Device device, Rotation rotation,
                     const std::function<std::int64_t(std::int64_t)>& held) {
  require_all_queries(input, "attention over a cache");
  check_starts(input, held);
  BegunStep step;
  step.output = at::empty(input.q.sizes(), at::TensorOptions(at::kFloat).device(device));
  if (input.sinks.defined()) step.sinks = input.sinks.to(device, at::kFloat).contiguous();
  if (rotation == Rotation::kInKernels) {
    check_kernel_means(method, input);
    step.q = kernel_rows(input.q, device);
    step.keys = kernel_rows(input.k, device), step.values = kernel_rows(input.v, device);
    return step;
  }
  const SideTransform* key = method.transform(input.layer, Side::kKey);
  const at::Tensor model_q = input.q.to(device);
  step.q = rotate_queries(model_q, key, input.k.size(1));
  if (input.soft_cap > 0.0 || input.sinks.defined()) {
    step.shift = logit_shift(model_q, key, input.k.size(1), input.scale);
  }
  if (input.sinks.defined()) step.weight_sum = at::empty({step.q.size(0), step.q.size(1)}, step.q.options());
  if (rotation == Rotation::kQueries) return step;
  add_positions(step, method, input, model_q);
  if (method.rope_dim > 0) step.positions = input.q_rope.to(device, at::kFloat).contiguous();
  auto [keys, values, rope] = new_rows(method, input);
  step.keys = std::move(keys), step.values = std::move(values), step.rope = std::move(rope);
  return step;
}

at::Tensor model_outputs(const KvMethod& method, const AttentionInput& input, const BegunStep& step) {
  const SideTransform* value = method.transform(input.layer, Side::kValue);
  return restore_outputs(step.output, value, input.k.size(1), step.weight_sum).to(input.q.options());
}

void append_batch(KvCache& cache, std::int64_t layer, const SequenceBatch& batch, const NewRows& rows) {
  const RowBits keys(rows.keys), values(rows.values), rope(rows.rope);
  std::int64_t row = 0;
  std::vector<KvCache::NextRows> next;
  for (std::size_t s = 0; s < batch.lengths.size(); row += batch.lengths[s++]) {
    if (batch.lengths[s] > 0) next.push_back({batch.ids[s], keys[row], values[row], batch.lengths[s], rope[row]});
  }
  cache.append_rows(layer, next, in_threads(1));
}

void append_step(KvCache& cache, std::int64_t layer, const std::vector<StepToken>& tokens, const RowBits& keys,
                 const RowBits& values, const RowBits& rope) {
  constexpr std::int64_t kCheapParts = 8;  // parts of one token each: fewer are not worth waking a thread
  std::vector<KvCache::NextRows> next;
  for (const StepToken& token : tokens)
    next.push_back({token.id, keys[token.row], values[token.row], 1, rope[token.row]});
  cache.append_rows(layer, next, in_threads(kCheapParts));
}

}  // namespace oscar
