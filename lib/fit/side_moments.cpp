#include "fit/side_moments.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/errors.h"

namespace oscar {
namespace {

constexpr const char* kNoPreRope =
    "the statistics have no moments before RoPE, which --context and --center rope need: fit with --context 0 and "
    "--center mean";

bool has_pre_rope(const Statistics& s) {
  return s.rope_frequency.defined() && std::all_of(s.layers.begin(), s.layers.end(), [](const LayerMoments& m) {
           return m.pre_k_gram.defined() && m.pre_k_sum.defined() && m.pre_q_gram.defined();
         });
}

// Share of a channel's second moment that remains after its mean is subtracted, below which it is a rounding error: the
// channel never varies.
constexpr double kRounding = 1e-12;

// [Hkv, d, d] with zeros in the rows and columns of channels that never vary.
at::Tensor without_rounding(const at::Tensor& covariance, const at::Tensor& second_moment) {
  const at::Tensor varies =
      (covariance.diagonal(0, 1, 2) > kRounding * second_moment.diagonal(0, 1, 2)).to(at::kDouble);
  return covariance * varies.unsqueeze(2) * varies.unsqueeze(1);
}

bool layer_has_far_pairs(const LayerMoments& m) {
  return m.far_q_gram.defined() && m.far_v_weight.defined() && m.far_count.defined() &&
         m.far_count[0].item<double>() > 0.0;
}

at::Tensor plain_metric(const Statistics& s, std::size_t layer, Side side, ValueTarget value_target) {
  const LayerMoments& m = s.layers[layer];
  const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
  if (side == Side::kKey) return m.q_gram / tokens;
  if (value_target == ValueTarget::kExact) return m.o_gram / tokens;
  return m.wo_gram;
}

}  // namespace

bool has_far_pairs(const Statistics& s) { return std::all_of(s.layers.begin(), s.layers.end(), layer_has_far_pairs); }

at::Tensor side_metric(const Statistics& s, std::size_t layer, Side side, const MomentChoice& choice) {
  const LayerMoments& m = s.layers[layer];
  const bool key = side == Side::kKey, turned = key && choice.served.count > 0;
  if (turned && !has_pre_rope(s)) throw InputError(kNoPreRope);
  at::Tensor metric;
  if (!has_far_pairs(s)) {
    const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
    metric = turned ? m.pre_q_gram / tokens : plain_metric(s, layer, side, choice.value_target);
  } else {
    metric = (!key ? m.far_v_weight : turned ? m.far_pre_q_gram : m.far_q_gram) / m.far_count[0].item<double>();
  }
  if (!turned) return metric;
  return PositionAverage(s.rope_frequency, s.rope_scale, s.head_dim, choice.served).second_moment(metric);
}

SideMoments side_moments(const Statistics& s, std::size_t layer, Side side, const MomentChoice& choice) {
  const LayerMoments& m = s.layers[layer];
  const bool key = side == Side::kKey, turned = key && choice.served.count > 0;
  const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
  if ((turned || (key && choice.rotated)) && !has_pre_rope(s)) throw InputError(kNoPreRope);
  if (key && choice.rotated && !turned) throw std::invalid_argument("a rotated mean needs positions");
  SideMoments out;
  const at::Tensor second = (!key ? m.v_gram : turned ? m.pre_k_gram : m.k_gram) / tokens;
  out.mean = (!key ? m.v_sum : turned ? m.pre_k_sum : m.k_sum) / tokens;
  // About the mean: if positions are averaged, about the mean of rows before RoPE; the spread of that mean is added
  // later.
  const at::Tensor covariance = without_rounding(second - out.mean.unsqueeze(2) * out.mean.unsqueeze(1), second);
  out.metric = side_metric(s, layer, side, choice);
  out.rotated = key && choice.rotated;
  if (!turned) {
    out.covariance = choice.centered ? covariance : second;
    return out;
  }
  const PositionAverage average(s.rope_frequency, s.rope_scale, s.head_dim, choice.served);
  if (choice.rotated) {
    out.covariance = average.second_moment(covariance);
  } else if (choice.centered) {
    out.covariance = average.second_moment(covariance) + average.spread(out.mean);
    out.mean = average.mean(out.mean);
  } else {
    out.covariance = average.second_moment(second);
    out.mean = average.mean(out.mean);
  }
  return out;
}

at::Tensor logit_moment(const Statistics& s, std::size_t layer, const Positions& served) {
  const LayerMoments& m = s.layers[layer];
  const double queries = static_cast<double>(std::max<std::int64_t>(s.tokens, 1) * (s.query_heads / s.kv_heads));
  const double scale = s.attention_scale > 0.0 ? s.attention_scale : 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  if (served.count == 0) return m.q_gram * (scale * scale / queries);
  if (!has_pre_rope(s)) throw InputError(kNoPreRope);
  const PositionAverage average(s.rope_frequency, s.rope_scale, s.head_dim, served);
  return average.second_moment(m.pre_q_gram * (scale * scale / queries));
}

double residual_power(const Statistics& s, std::size_t layer) {
  const LayerMoments& m = s.layers[layer];
  const auto mean = [](const at::Tensor& sums) {  // [sum, tokens]
    const double tokens = sums[1].item<double>();
    return tokens > 0.0 ? sums[0].item<double>() / tokens : 0.0;
  };
  const auto far_mean = [&](const at::Tensor& sums) {  // [2, 2]; over all tokens if none is after the windows
    const double far = mean(sums[1]);
    return far > 0.0 ? far : mean(sums[0]);
  };
  double power = 0.0;
  if (m.attention_gain.defined()) {
    const double gain = far_mean(m.attention_gain);
    power = gain > 0.0 ? 1.0 / gain : 0.0;
  } else if (m.attention_residual.defined()) {
    power = far_mean(m.attention_residual);
  } else if (m.residual_energy.defined()) {
    power = mean(m.residual_energy);
  }
  return power > 0.0 ? power : 1.0;
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
  // Only channels that never vary get a floor: a floor for all channels would swamp small channels beside large ones.
  const double middle = diagonal.masked_select(diagonal > 0.0).median().item<double>();
  const at::Tensor floor = at::where(diagonal < 1e-10 * middle, 1e-6 * middle, 0.0).to(at::kDouble);
  const double shrink = d / (static_cast<double>(std::max<std::int64_t>(tokens, 1)) + d);
  const at::Tensor target = at::diag(diagonal);
  const at::Tensor shrunk = symmetric * (1.0 - shrink) + target * shrink;
  return shrunk + at::diag(diagonal * damping + floor);
}

}  // namespace oscar
