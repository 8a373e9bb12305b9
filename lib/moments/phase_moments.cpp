#include "moments/phase_moments.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "model/phase_table.h"

namespace oscar {
namespace {

constexpr std::int64_t kRows = 512, kGpuRows = 8192;  // converted to FP64 at once

// W with RoPE_p(m) = c_p W: [Hkv, d, d] from m [Hkv, d].
at::Tensor rotation_of(const at::Tensor& mean) {
  const std::int64_t half = mean.size(1) / 2;
  const at::Tensor m1 = at::diag_embed(mean.narrow(1, 0, half)), m2 = at::diag_embed(mean.narrow(1, half, half));
  return at::cat({at::cat({m1, m2}, 2), at::cat({-m2, m1}, 2)}, 1);
}

}  // namespace

PhaseAccumulator::PhaseAccumulator(const ModelConfig& config, at::Device device)
    : frequencies_(rope_frequencies(config.rope, config.head_dim, config.max_position)),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim),
      device_(device) {
  frequencies_.inverse = frequencies_.inverse.contiguous();
}

void PhaseAccumulator::begin_layer(const LayerMoments* partial) {
  sum_ = at::zeros({kv_heads_, head_dim_, head_dim_}, at::TensorOptions(at::kDouble).device(device_));
  if (partial != nullptr && partial->k_phase.defined()) sum_.copy_(partial->k_phase);
}

const at::Tensor& PhaseAccumulator::phases_of(const SequenceBatch& batch) {
  std::vector<std::int64_t> positions;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    for (std::int64_t i = 0; i < batch.lengths[s]; ++i) positions.push_back(batch.starts[s] + i);
  }
  if (positions != positions_ || !phases_.defined()) {  // the same steps come again in every layer
    phases_ = phase_rows(frequencies_, positions).to(device_);
    positions_ = std::move(positions);
  }
  return phases_;
}

void PhaseAccumulator::add(const AttentionInput& input) {
  const at::Tensor& phases = phases_of(*input.batch);
  const std::int64_t rows = device_.is_cuda() ? kGpuRows : kRows;
  for (std::int64_t first = 0; first < phases.size(0); first += rows) {
    const std::int64_t count = std::min(rows, phases.size(0) - first);
    const at::Tensor keys = input.k.narrow(0, first, count).to(at::kDouble).permute({1, 2, 0});  // [Hkv, d, n]
    sum_.add_(at::matmul(keys, phases.narrow(0, first, count).to(at::kDouble)));
  }
}

void PhaseAccumulator::store(LayerMoments& out) const { out.k_phase = sum_.cpu().clone(); }

at::Tensor phase_gram(const RopeFrequencies& frequencies, const std::vector<std::int64_t>& lengths) {
  // Sequences share their first positions: position p counts once for every sequence that is longer.
  std::vector<std::int64_t> sorted = lengths;
  std::sort(sorted.begin(), sorted.end());
  const std::int64_t longest = sorted.empty() ? 0 : sorted.back(), d = 2 * frequencies.inverse.size(0);
  at::Tensor gram = at::zeros({d, d}, at::kDouble);
  for (std::int64_t first = 0; first < longest; first += kRows) {
    std::vector<std::int64_t> positions;
    std::vector<double> counts;
    for (std::int64_t p = first; p < std::min(longest, first + kRows); ++p) {
      positions.push_back(p);
      counts.push_back(static_cast<double>(sorted.end() - std::upper_bound(sorted.begin(), sorted.end(), p)));
    }
    const at::Tensor c = phase_rows(frequencies, positions).to(at::kDouble);
    gram.add_(at::matmul(c.t(), c * at::tensor(at::ArrayRef<double>(counts), at::kDouble).unsqueeze(1)));
  }
  return (gram + gram.t()) * 0.5;
}

RotatedKeyMoments rotated_key_moments(const Statistics& s, std::size_t layer) {
  const LayerMoments& m = s.layers[layer];
  if (!m.k_phase.defined() || !s.phase_gram.defined() || !s.phase_frequency.defined()) {
    throw InputError(
        "the statistics hold no phases of keys, which centring before RoPE needs: collect them again with this "
        "version, "
        "or fit with --center mean");
  }
  const std::int64_t half = s.head_dim / 2;
  const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
  const at::Tensor& x = m.k_phase;  // x[h, i, j] = sum over p of k_i c_j
  const at::Tensor upper = x.narrow(1, 0, half), lower = x.narrow(1, half, half);
  const auto diagonal = [half](const at::Tensor& part, std::int64_t from) {
    return part.narrow(2, from, half).diagonal(0, 1, 2);  // [Hkv, d/2]
  };
  // Back to position 0: (k1 C + k2 S, k2 C - k1 S) / a^2, and the sum of C^2 + S^2 is T a^2 for every frequency.
  const at::Tensor power = s.phase_gram.diagonal();
  const at::Tensor norm = (power.narrow(0, 0, half) + power.narrow(0, half, half)).clamp_min(1e-300);
  RotatedKeyMoments out;
  out.mean = at::cat(
      {(diagonal(upper, 0) + diagonal(lower, half)) / norm, (diagonal(lower, 0) - diagonal(upper, half)) / norm}, 1);
  const at::Tensor w = rotation_of(out.mean), cross = at::matmul(x, w);  // sum of k^T RoPE_p(mean)
  const at::Tensor square = at::matmul(w.transpose(1, 2), at::matmul(s.phase_gram, w));
  const at::Tensor total = m.k_gram - cross - cross.transpose(1, 2) + square;
  out.covariance = (total + total.transpose(1, 2)) / (2.0 * tokens);
  return out;
}

}  // namespace oscar
