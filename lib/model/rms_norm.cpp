// Norms of rows, computed in FP32.
#include <ATen/ATen.h>

#include <optional>
#include <tuple>

#include "model/layer.h"

namespace oscar {
at::Tensor norm_gain(const at::Tensor& weight, NormKind kind) {
  const at::Tensor wide = weight.to(at::kFloat);
  return kind == NormKind::kOnePlus ? wide + 1.0 : wide;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormKind kind) {
  const bool plain = !weight.defined() || kind == NormKind::kRounded;
  if (x.is_cuda() && kind != NormKind::kCentered &&
      (plain || kind == NormKind::kWide)) {  // one kernel in place of seven
    const auto inner = plain ? std::optional<at::Tensor>() : weight.to(x.scalar_type());
    at::Tensor normed = std::get<0>(at::_fused_rms_norm(x, x.sizes().slice(x.dim() - 1), inner, eps));
    return weight.defined() && plain ? normed.mul_(weight) : normed;
  }
  at::Tensor wide = x.to(at::kFloat);
  if (kind == NormKind::kCentered) wide = wide - wide.mean(-1, true);
  const at::Tensor scale = wide.square().mean(-1, true).add_(eps).rsqrt_();
  at::Tensor normed = wide * scale;
  if (!weight.defined()) return normed.to(x.scalar_type());
  if (kind == NormKind::kRounded) return normed.to(x.scalar_type()).mul_(weight);
  return normed.mul_(norm_gain(weight, kind)).to(x.scalar_type());
}

}  // namespace oscar
