#include "rotation/side_moments.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "moments/phase_moments.h"

namespace oscar {
namespace {

// What is left of a channel's second moment once its mean is gone, where that is rounding: it never varies.
constexpr double kRounding = 1e-12;

// [Hkv, d, d] without the rows and columns of channels that never vary.
at::Tensor without_rounding(const at::Tensor& covariance, const at::Tensor& second_moment) {
  const at::Tensor varies =
      (covariance.diagonal(0, 1, 2) > kRounding * second_moment.diagonal(0, 1, 2)).to(at::kDouble);
  return covariance * varies.unsqueeze(2) * varies.unsqueeze(1);
}

bool layer_has_fisher(const LayerMoments& m) {
  return m.fisher_q_gram.defined() && m.fisher_v_weight.defined() && m.fisher_count.defined() &&
         m.fisher_count[0].item<double>() > 0.0;
}

at::Tensor plain_metric(const Statistics& s, std::size_t layer, Side side, ValueTarget value_target) {
  const LayerMoments& m = s.layers[layer];
  const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
  if (side == Side::kKey) return m.q_gram / tokens;
  if (value_target == ValueTarget::kExact) return m.o_gram / tokens;
  if (value_target == ValueTarget::kEnergy) return m.energy_gram / tokens;
  return m.wo_gram;
}

}  // namespace

bool has_fisher(const Statistics& s) { return std::all_of(s.layers.begin(), s.layers.end(), layer_has_fisher); }

SideMoments side_moments(const Statistics& s, std::size_t layer, Side side, ValueTarget value_target,
                         MetricSource source, bool centred, bool rotated) {
  const LayerMoments& m = s.layers[layer];
  const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
  const at::Tensor& gram = side == Side::kKey ? m.k_gram : m.v_gram;
  const at::Tensor& sum = side == Side::kKey ? m.k_sum : m.v_sum;
  SideMoments out;
  out.mean = sum / tokens;
  out.covariance = gram / tokens;
  if (rotated) {
    const RotatedKeyMoments moments = rotated_key_moments(s, layer);
    out.mean = moments.mean;
    out.covariance = without_rounding(moments.covariance, gram / tokens);
  } else if (centred) {
    out.covariance = without_rounding(out.covariance - out.mean.unsqueeze(2) * out.mean.unsqueeze(1), out.covariance);
  }
  out.fisher = source != MetricSource::kMoments && has_fisher(s);
  if (source == MetricSource::kFisher && !out.fisher) {
    throw InputError(
        "the statistics hold no far-pair Fisher metrics; collect them again with sequences longer than both windows, "
        "or fit with --metric moments");
  }
  if (!out.fisher) {
    out.metric = plain_metric(s, layer, side, value_target);
  } else {
    out.metric = (side == Side::kKey ? m.fisher_q_gram : m.fisher_v_weight) / m.fisher_count[0].item<double>();
  }
  return out;
}

double residual_power(const Statistics& s, std::size_t layer) {
  const LayerMoments& m = s.layers[layer];
  if (layer_has_fisher(m) && m.fisher_count[2].item<double>() > 0.0) {
    return m.fisher_count[2].item<double>() / m.fisher_count[0].item<double>();
  }
  if (!m.residual_energy.defined() || !(m.residual_energy[0].item<double>() > 0.0)) return 1.0;
  return m.residual_energy[0].item<double>() / m.residual_energy[1].item<double>();
}

at::Tensor without_noise(const at::Tensor& matrix, double damping, std::int64_t tokens, double& noise) {
  const at::Tensor safe = damped(matrix, damping, tokens);
  const at::Tensor unit = safe.diagonal().sqrt();
  if (std::get<1>(at::linalg_cholesky_ex(safe / at::outer(unit, unit))).item<int>() == 0) return {};
  const at::Tensor diagonal = matrix.diagonal().clamp_min(0.0);
  const at::Tensor size = at::where(diagonal > 0.0, diagonal.sqrt(), 1.0).to(at::kDouble);
  const at::Tensor sizes = at::outer(size, size);
  const auto [values, vectors] = at::linalg_eigh((matrix + matrix.t()) * 0.5 / sizes);
  noise = std::max(-values[0].item<double>(), 1e-12);
  return at::matmul(vectors * values.clamp_min(noise), vectors.t()) * sizes;
}

at::Tensor damped(const at::Tensor& matrix, double damping, std::int64_t tokens) {
  const double d = static_cast<double>(matrix.size(0));
  const at::Tensor symmetric = (matrix + matrix.t()) * 0.5;
  at::Tensor diagonal = symmetric.diagonal().clamp_min(0.0);
  // Only channels that never vary get a floor: one for all channels would swamp small channels beside large ones.
  const double middle = diagonal.masked_select(diagonal > 0.0).median().item<double>();
  const at::Tensor floor = at::where(diagonal < 1e-10 * middle, 1e-6 * middle, 0.0).to(at::kDouble);
  const double shrink = d / (static_cast<double>(std::max<std::int64_t>(tokens, 1)) + d);
  const at::Tensor target = at::diag(diagonal);
  const at::Tensor shrunk = symmetric * (1.0 - shrink) + target * shrink;
  return shrunk + at::diag(diagonal * damping + floor);
}

}  // namespace oscar
