#include "model/rope.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "base/parallel.h"
#include "model/turned_rows.h"

namespace oscar {
namespace {

// theta^(2i/d), FP32.
at::Tensor wavelengths_per_turn(double theta, std::int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::TensorOptions().dtype(at::kFloat)).div(head_dim);
  return at::pow(at::Scalar(theta), exponents);
}

// Long wavelengths are stretched by `factor`, short ones stay, and those in between are blended.
at::Tensor llama3_frequencies(const RopeConfig& rope, const at::Tensor& inverse) {
  const double context = static_cast<double>(rope.original_max_position);
  const at::Tensor wavelength = at::reciprocal(inverse).mul(2.0 * std::numbers::pi);
  const at::Tensor is_long = wavelength.gt(context / rope.low_freq_factor);
  const at::Tensor is_short = wavelength.lt(context / rope.high_freq_factor);
  const at::Tensor smooth = at::reciprocal(wavelength)
                                .mul(context)
                                .sub(rope.low_freq_factor)
                                .div(rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor blended = (1 - smooth) * inverse / rope.factor + smooth * inverse;
  return at::where(is_long, inverse / rope.factor, at::where(is_short, inverse, blended));
}

// Dimensions with more than beta_fast rotations over the original context stay, and dimensions with fewer than
// beta_slow are interpolated. A linear ramp over the dimensions connects them.
at::Tensor yarn_frequencies(const RopeConfig& rope, const at::Tensor& turns, std::int64_t head_dim) {
  const double context = static_cast<double>(rope.original_max_position);
  const double width = static_cast<double>(head_dim);
  const auto dimension_of = [&](double rotations) {
    return width * std::log(context / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1.0);
  if (low == high) high += 0.001;
  const at::Tensor ramp =
      at::arange(head_dim / 2, at::TensorOptions().dtype(at::kFloat)).sub(low).div(high - low).clamp(0, 1);
  const at::Tensor keep = 1 - ramp;
  const at::Tensor interpolated = at::reciprocal(turns * rope.factor);
  return interpolated * (1 - keep) + at::reciprocal(turns) * keep;
}

// The first pairs have the frequencies of rotating all pairs, the others 0.
at::Tensor proportional_frequencies(const RopeConfig& rope, const at::Tensor& turns, std::int64_t head_dim) {
  const auto pairs = static_cast<std::int64_t>(rope.partial * static_cast<double>(head_dim)) / 2;
  at::Tensor inverse = at::zeros_like(turns);
  inverse.narrow(0, 0, pairs).copy_(at::reciprocal(turns.narrow(0, 0, pairs)));
  return inverse / rope.factor;
}

// Stretches each wavelength by its own factor; the run length selects the set of factors.
at::Tensor longrope_frequencies(const RopeConfig& rope, const at::Tensor& turns) {
  const std::vector<double>& factors = rope.is_long() ? rope.long_factor : rope.short_factor;
  if (static_cast<std::int64_t>(factors.size()) != turns.size(0)) {
    throw InputError("longrope has " + std::to_string(factors.size()) + " factors, expected " +
                     std::to_string(turns.size(0)));
  }
  return at::reciprocal(at::tensor(factors, at::kDouble).to(at::kFloat) * turns);
}

// The base with which the slowest pair rotates over the run length as over the original length at factor 1.
double dynamic_theta(const RopeConfig& rope, std::int64_t turning) {
  const double original = static_cast<double>(rope.original_max_position), width = static_cast<double>(turning);
  const double length = std::max(static_cast<double>(rope.run_length), original);
  return rope.theta * std::pow(rope.factor * length / original - (rope.factor - 1.0), width / (width - 2.0));
}

// [T] FP32, on the CPU.
at::Tensor positions_of(const SequenceBatch& batch) {
  at::Tensor positions = at::empty({batch.tokens()}, at::TensorOptions().dtype(at::kFloat));
  float* out = positions.mutable_data_ptr<float>();
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    for (std::int64_t i = 0; i < batch.lengths[s]; ++i) *out++ = static_cast<float>(batch.starts[s] + i);
  }
  return positions;
}

// rotated() of FP32 rows [T, H, d] on the CPU, in one pass; nothing is kept for gradients.
at::Tensor turned(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor rows = x.contiguous(), c = cos.contiguous(), s = sin.contiguous();
  const std::int64_t heads = x.size(1), d = x.size(2), pairs = cos.size(-1);
  at::Tensor out = at::empty(x.sizes(), x.options());
  const float *from = rows.const_data_ptr<float>(), *cosines = c.const_data_ptr<float>();
  const float* sines = s.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  parallel_ranges(x.size(0), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      turn_row(from + t * heads * d, heads, d, cosines + t * pairs, sines + t * pairs, pairs, to + t * heads * d);
    }
  });
  return out;
}

// Rounds each product to the activation dtype before the sum, as in transformers: no fused multiply-add.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleaved) {
  const bool wide = x.scalar_type() == at::kFloat && cos.scalar_type() == at::kFloat && !x.requires_grad();
  if (x.is_cpu() && wide && !interleaved && x.dim() == 3 && cos.dim() == 3 && cos.size(0) == x.size(0)) {
    return turned(x, cos, sin);
  }
  const std::int64_t pairs = cos.size(-1), rest = x.size(-1) - 2 * pairs;
  const auto half = [&](const at::Tensor& t, std::int64_t which) {
    return interleaved ? t.slice(-1, which, 2 * pairs, 2) : t.narrow(-1, which * pairs, pairs);
  };
  const at::Tensor first = half(x, 0), second = half(x, 1);
  at::Tensor out = at::empty_like(x, at::MemoryFormat::Contiguous);
  at::Tensor out_first = half(out, 0), out_second = half(out, 1);
  at::mul_out(out_first, first, cos).sub_(second * sin);
  at::mul_out(out_second, second, cos).add_(first * sin);
  if (rest > 0) out.narrow(-1, 2 * pairs, rest).copy_(x.narrow(-1, 2 * pairs, rest));
  return out;
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_position) {
  if (head_dim <= 0 || head_dim % 2 != 0) {
    throw InputError("Rotary embedding needs an even head_dim, but the model has " + std::to_string(head_dim) + ".");
  }
  RopeConfig settings = rope;
  const std::int64_t turning = rope.turning(head_dim);
  if (settings.original_max_position <= 0) settings.original_max_position = max_position;
  const at::Tensor turns = wavelengths_per_turn(settings.theta, turning);
  RopeFrequencies result;
  result.interleaved = settings.interleaved;
  switch (settings.type) {
    case RopeType::kDefault:
      result.inverse = at::reciprocal(turns);
      break;
    case RopeType::kLinear:
      result.inverse = at::reciprocal(turns) / settings.factor;
      break;
    case RopeType::kLlama3:
      result.inverse = llama3_frequencies(settings, at::reciprocal(turns));
      break;
    case RopeType::kYarn:
      result.inverse = yarn_frequencies(settings, turns, turning);
      result.attention_factor = settings.attention_factor;
      break;
    case RopeType::kLongRope:
      result.inverse = longrope_frequencies(settings, turns);
      result.attention_factor = settings.attention_factor;
      break;
    case RopeType::kDynamic:
      result.inverse = at::reciprocal(wavelengths_per_turn(dynamic_theta(settings, turning), turning));
      break;
    case RopeType::kProportional:
      result.inverse = proportional_frequencies(settings, turns, turning);
      break;
  }
  return result;
}

RopeFrequencies common_rope(const ModelConfig& config) {
  const bool differs = std::any_of(config.layer_rope.begin(), config.layer_rope.end(),
                                   [](LayerRope kind) { return kind != LayerRope::kGlobal; });
  if (differs || config.is_latent() || config.rope.interleaved || config.norm_after_rope)
    return {at::empty({0}, at::kFloat)};
  return rope_frequencies(config.rope, config.head_dim, config.max_position);
}

std::int64_t rope_reach(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (!rope.by_length()) return 0;
  if (!rope.is_long()) return rope.original_max_position;
  return rope.type == RopeType::kLongRope ? 0 : rope.run_length;
}

void require_full_rope(const ModelConfig& config, const std::string& what) {
  if (2 * common_rope(config).inverse.size(0) == config.head_dim) return;
  if (config.norm_after_rope) {
    throw InputError(what + " needs keys that are only turned after their norm, but " + config.architecture +
                     " normalizes them after the rotary embedding.");
  }
  throw InputError(what + " needs one rotary embedding over all channels of every layer, which " + config.architecture +
                   " does not have with this config.json.");
}

at::Tensor query_scales(const QueryScale& scale, const SequenceBatch& batch, at::Device device) {
  const at::Tensor turns = positions_of(batch).add_(static_cast<double>(scale.first)).div_(scale.length).floor_();
  return turns.log1p_().mul_(scale.beta).add_(1.0).view({-1, 1, 1}).to(device);
}

RopeTable rope_table(const RopeFrequencies& frequencies, const SequenceBatch& batch, at::ScalarType dtype,
                     at::Device device) {
  const at::Tensor angles = at::outer(positions_of(batch).to(device), frequencies.inverse.to(device)).unsqueeze(1);
  RopeTable table{.interleaved = frequencies.interleaved};
  const auto fill = [&](std::int64_t) {
    table.cos = angles.cos().mul_(frequencies.attention_factor).to(dtype);
    table.sin = angles.sin().mul_(frequencies.attention_factor).to(dtype);
  };
  // One thread: where several threads made the process's first call of MKL's cosine, one of them in about a hundred
  // runs had errors of 6e-5.
  angles.is_cpu() ? parallel_tasks(1, fill) : fill(0);
  return table;
}

at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table) {
  if (!table.cos.defined()) return x;
  return rotated(x, table.cos, table.sin, table.interleaved);
}

}  // namespace oscar
