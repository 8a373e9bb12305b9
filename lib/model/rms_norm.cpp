// Norms of rows. Autograd would follow them operation by operation, in FP32 copies of the rows: on a GPU that takes
// longer than the products of a backward pass, so theirs is written out.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>

#include "model/layer.h"

namespace oscar {
namespace {

struct Normed {
  at::Tensor out, scale;  // as x; what each row was multiplied by, FP32, [.., 1]
};

// What rows are multiplied by, FP32.
at::Tensor wide_weight(const at::Tensor& weight, NormKind kind) {
  const at::Tensor wide = weight.to(at::kFloat);
  return kind == NormKind::kOnePlus ? wide + 1.0 : wide;
}

Normed norm_of(const at::Tensor& x, const at::Tensor& weight, double eps, NormKind kind) {
  at::Tensor wide = x.to(at::kFloat);
  if (kind == NormKind::kCentred) wide = wide - wide.mean(-1, true);
  const at::Tensor scale = wide.square().mean(-1, true).add_(eps).rsqrt_(), normed = wide * scale;
  if (!weight.defined()) return {normed.to(x.scalar_type()), scale};
  if (kind == NormKind::kRounded) return {normed.to(x.scalar_type()).mul_(weight), scale};
  return {(normed * wide_weight(weight, kind)).to(x.scalar_type()), scale};
}

// y = s x w, s = (mean(x^2) + eps)^-1/2: dL/dx = s (g w) - x s^3 mean(g w x). Weights have no gradient.
class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  // given: optional because apply() takes no undefined tensor.
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const std::optional<at::Tensor>& given, double eps, std::int64_t kind) {
    const at::Tensor weight = given.value_or(at::Tensor());
    const Normed normed = norm_of(x, weight, eps, static_cast<NormKind>(kind));
    ctx->save_for_backward({x, weight, normed.scale});
    ctx->saved_data["kind"] = kind;
    return normed.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &scale = saved[2], &g = gradients[0];
    const auto kind = static_cast<NormKind>(ctx->saved_data["kind"].toInt());
    const std::int64_t n = x.size(-1);
    if (x.is_cuda() && weight.defined() && kind != NormKind::kOnePlus && weight.scalar_type() == x.scalar_type()) {
      return {
          std::get<0>(at::_fused_rms_norm_backward(g.contiguous(), x.contiguous(), {n}, scale, weight, {true, false})),
          {},
          {},
          {}};
    }
    at::Tensor weighed = g.to(at::kFloat);
    if (weight.defined()) weighed = weighed * wide_weight(weight, kind);
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor along = (weighed * wide).mean(-1, true).mul_(scale.pow(3));
    return {(weighed * scale).sub_(wide * along).to(x.scalar_type()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormKind kind) {
  if (kind != NormKind::kCentred && c10::GradMode::is_enabled() && x.requires_grad()) {
    return RmsNorm::apply(x, weight.defined() ? std::optional(weight) : std::nullopt, eps,
                          static_cast<std::int64_t>(kind));
  }
  return norm_of(x, weight, eps, kind).out;
}

}  // namespace oscar
