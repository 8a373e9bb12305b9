#include "model/experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "model/layer.h"

namespace oscar {
namespace {

constexpr std::int64_t kExpertBlock = 4096;  // tokens; bounds the copies that are sorted by expert

// Row e of a tensor of all experts; undefined stays undefined.
at::Tensor of_expert(const at::Tensor& all, std::int64_t e) { return all.defined() ? all.select(0, e) : at::Tensor(); }

at::Tensor one_expert(const at::Tensor& x, const LayerWeights& w, std::int64_t e, const ExpertConfig& config,
                      ExpertGate kind, Activation activation) {
  const at::Tensor both = at::linear(x, of_expert(w.expert_gate_up, e), of_expert(w.expert_gate_up_bias, e));
  const std::int64_t width = both.size(1) / 2;
  at::Tensor gate = both.narrow(1, 0, width), up = both.narrow(1, width, width);
  if (kind == ExpertGate::kClamped) {
    gate = gate.clamp_max(config.gate_limit);
    gate = gate * (gate * config.gate_gain).sigmoid_();
    up = up.clamp(-config.gate_limit, config.gate_limit).add_(1.0);
  } else {
    activate_(gate, activation);
  }
  return at::linear(gate * up, of_expert(w.expert_down, e), of_expert(w.expert_down_bias, e));
}

at::Tensor expert_block(const at::Tensor& x, const at::Tensor& routed, const LayerWeights& w,
                        const ExpertConfig& config, const Pieces& pieces, Activation activation) {
  const std::int64_t tokens = x.size(0), chosen = config.per_token;
  const Routing routing = route(routed, w, config, pieces);
  const at::Tensor flat = routing.experts.reshape({-1});
  const at::Tensor order = at::argsort(flat, /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor counts = at::bincount(flat, {}, config.count).cpu();
  at::Tensor sorted = x.index_select(0, at::floor_divide(order, chosen));
  if (pieces.weighed_inputs) {
    sorted = sorted * routing.weights.reshape({-1}).index_select(0, order).unsqueeze(1).to(x.scalar_type());
  }
  at::Tensor results = at::empty({tokens * chosen, x.size(1)}, x.options());  // row t k + j: token t, its choice j
  const auto* count = counts.const_data_ptr<std::int64_t>();
  for (std::int64_t e = 0, first = 0; e < config.count; first += count[e], ++e) {
    if (count[e] == 0) continue;
    results.index_copy_(0, order.narrow(0, first, count[e]),
                        one_expert(sorted.narrow(0, first, count[e]), w, e, config, pieces.gate, activation));
  }
  const at::Tensor by_token = results.view({tokens, chosen, x.size(1)});
  const at::Tensor given = routing.weights.to(at::kFloat).unsqueeze(2);
  const at::Tensor weights = pieces.weighed_inputs ? at::ones_like(given) : given;
  at::Tensor sum = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  for (std::int64_t j = 0; j < chosen; ++j) {
    sum.addcmul_(by_token.select(1, j).to(at::kFloat), weights.select(1, j));
  }
  return sum.to(x.scalar_type());
}

// Scores [T, E] with minus infinity in all groups of experts but the best.
at::Tensor of_best_groups(const at::Tensor& scores, const ExpertConfig& config) {
  if (config.groups_chosen >= config.groups) return scores;
  const at::Tensor grouped = scores.view({scores.size(0), config.groups, -1});
  const at::Tensor strength = std::get<0>(grouped.topk(config.group_judges, -1)).sum(-1);
  const at::Tensor best = std::get<1>(strength.topk(config.groups_chosen, -1));
  const at::Tensor others = at::ones_like(strength, at::kBool).scatter_(1, best, false).unsqueeze(2);
  return grouped.masked_fill(others, -std::numeric_limits<double>::infinity()).view(scores.sizes());
}

}  // namespace

Routing route(const at::Tensor& x, const LayerWeights& weights, const ExpertConfig& config, const Pieces& pieces) {
  const at::Tensor logits = at::linear(pieces.wide_router ? x.to(at::kFloat) : x, weights.router, weights.router_bias);
  if (pieces.router == RouterKind::kLargestFirst) {
    const auto [top, experts] = logits.topk(config.per_token, -1);
    return {experts, at::softmax(top, -1)};
  }
  if (pieces.router == RouterKind::kLargestSigmoids) {
    const auto [top, experts] = logits.topk(config.per_token, -1);
    return {experts, top.to(at::kFloat).sigmoid().to(x.scalar_type())};
  }
  const at::Tensor scores =
      pieces.router == RouterKind::kSigmoid ? logits.to(at::kFloat).sigmoid() : at::softmax(logits, -1, at::kFloat);
  const at::Tensor corrected = weights.router_correction.defined() ? scores + weights.router_correction : scores;
  const at::Tensor experts = std::get<1>(of_best_groups(corrected, config).topk(config.per_token, -1));
  at::Tensor top = scores.gather(-1, experts);
  if (config.normalised) top = top / top.sum(-1, true).clamp_min(config.least_sum);
  if (config.scaling != 1.0) top = top * config.scaling;
  if (weights.expert_scale.defined()) top = top * weights.expert_scale.to(at::kFloat).index({experts});
  return {experts, pieces.rounded_weights ? top.to(x.scalar_type()) : top};
}

at::Tensor expert_mlp(const at::Tensor& x, const at::Tensor& routed, const LayerWeights& weights,
                      const ExpertConfig& config, const Pieces& pieces, Activation activation) {
  const std::int64_t tokens = x.size(0);
  if (tokens <= kExpertBlock) return expert_block(x, routed, weights, config, pieces, activation);
  at::Tensor out = at::empty_like(x);
  for (std::int64_t start = 0; start < tokens; start += kExpertBlock) {
    const std::int64_t count = std::min(kExpertBlock, tokens - start);
    const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, start, count); };
    part(out).copy_(expert_block(part(x), part(routed), weights, config, pieces, activation));
  }
  return out;
}

}  // namespace oscar
