#include "model/experts.h"

#include <ATen/ATen.h>

#include "model/layer.h"

namespace oscar {
namespace {

// Entry e of a tensor for all experts; undefined stays undefined.
at::Tensor of_expert(const at::Tensor& all, std::int64_t e) { return all.defined() ? all.select(0, e) : at::Tensor(); }

// [R, 2I], gate first -> [R, I]: input of the last product.
at::Tensor gated(const at::Tensor& both, const ExpertConfig& config, ExpertGate kind, Activation activation) {
  const std::int64_t width = both.size(1) / 2;
  at::Tensor gate = both.narrow(1, 0, width), up = both.narrow(1, width, width);
  if (kind == ExpertGate::kClamped) {
    gate = gate.clamp_max(config.gate_limit);
    gate = gate * (gate * config.gate_gain).sigmoid_();
    up = up.clamp(-config.gate_limit, config.gate_limit).add_(1.0);
  } else {
    activate_(gate, activation);
  }
  return gate * up;
}

}  // namespace

at::Tensor looped_experts(const ExpertRows& rows, const LayerWeights& w, const ExpertConfig& config, ExpertGate kind,
                          Activation activation) {
  const at::Tensor counts = rows.counts.cpu();
  const auto* count = counts.const_data_ptr<std::int64_t>();
  at::Tensor out = at::empty_like(rows.x);
  for (std::int64_t e = 0, first = 0; e < counts.size(0); first += count[e], ++e) {
    if (count[e] == 0) continue;
    const at::Tensor x = rows.x.narrow(0, first, count[e]);
    const at::Tensor both = at::linear(x, of_expert(w.expert_gate_up, e), of_expert(w.expert_gate_up_bias, e));
    out.narrow(0, first, count[e])
        .copy_(at::linear(gated(both, config, kind, activation), of_expert(w.expert_down, e),
                          of_expert(w.expert_down_bias, e)));
  }
  return out;
}

at::Tensor grouped_experts(const ExpertRows& rows, const LayerWeights& w, const ExpertConfig& config, ExpertGate kind,
                           Activation activation) {
  const at::Tensor ends = rows.counts.cumsum(0).to(at::kInt);
  at::Tensor expert;  // expert of each row, if there are biases
  const auto product = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    at::Tensor y = at::_grouped_mm(x, weight.transpose(1, 2), ends);
    if (!bias.defined()) return y;
    if (!expert.defined()) {
      const at::Tensor all = at::arange(rows.counts.size(0), rows.counts.options());
      expert = at::repeat_interleave(all, rows.counts, 0, x.size(0));
    }
    return y.add_(bias.index_select(0, expert));
  };
  const at::Tensor both = product(rows.x, w.expert_gate_up, w.expert_gate_up_bias);
  return product(gated(both, config, kind, activation), w.expert_down, w.expert_down_bias);
}

bool can_group(const at::Tensor& x, const LayerWeights& w) {
  constexpr std::int64_t kAligned = 8;
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && w.expert_gate_up.scalar_type() == at::kBFloat16 &&
         x.size(1) % kAligned == 0 && w.expert_down.size(2) % kAligned == 0;
}

}  // namespace oscar
