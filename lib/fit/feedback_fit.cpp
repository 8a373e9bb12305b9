#include "fit/feedback_fit.h"

#include <ATen/ATen.h>

#include "fit/side_moments.h"

namespace oscar {
namespace {

at::Tensor of_head(const at::Tensor& matrices, std::int64_t head) { return matrices[matrices.size(0) == 1 ? 0 : head]; }

// [d, d] FP64 in the cache basis. Keys: q' = q B, so an error e' costs e' B^T M B e'^T. Values: o = o' B, so it costs
// e' B M B^T e'^T.
at::Tensor in_cache_basis(const at::Tensor& metric, const SideTransform& t, Side side, std::int64_t head) {
  at::Tensor back = of_head(t.orthogonal() ? t.forward : t.back(side), head).to(at::kDouble);
  if (side == Side::kValue && !t.orthogonal()) back = back.t();
  return at::matmul(at::matmul(back.t(), metric), back);
}

// Diagonal blocks [d, n] of one head, mean diagonal 1.
at::Tensor diagonal_blocks(const at::Tensor& metric, std::int64_t n) {
  const std::int64_t d = metric.size(0);
  at::Tensor out = at::empty({d, n}, at::kDouble);
  for (std::int64_t first = 0; first < d; first += n) {
    out.narrow(0, first, n).copy_(metric.narrow(0, first, n).narrow(1, first, n));
  }
  return out / metric.diagonal().mean();
}

}  // namespace

void set_feedback_metric(const Statistics& s, const FitOptions& o, Side side, std::size_t layer,
                         SideTransform& transform) {
  const at::Tensor metrics = side_metric(s, layer, side, moment_choice(o, ValueTarget::kOutput, false));
  const std::int64_t n = transform.code(s.head_dim, o.quant_group).scale_channels();
  std::vector<at::Tensor> heads;
  for (std::int64_t head = 0; head < s.kv_heads; ++head) {
    const at::Tensor metric = metrics[head];
    if (metric.diagonal().sum().item<double>() > 0.0) {
      const at::Tensor safe = damped(metric, o.damping, s.tokens);
      heads.push_back(diagonal_blocks(in_cache_basis(safe, transform, side, head), n));
    } else {
      heads.push_back(at::eye(n, at::kDouble).repeat({s.head_dim / n, 1}));
    }
  }
  transform.metric = at::stack(heads).to(at::kFloat).contiguous();
}

}  // namespace oscar
