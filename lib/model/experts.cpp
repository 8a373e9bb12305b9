#include "model/experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace oscar {
namespace {

constexpr std::int64_t kExpertBlock = 4096;  // tokens; limits the size of copies sorted by expert

at::Tensor expert_block(const at::Tensor& x, const at::Tensor& routed, const LayerWeights& w,
                        const ExpertConfig& config, const Pieces& pieces, Activation activation) {
  const std::int64_t tokens = x.size(0), chosen = config.per_token;
  const Routing routing = route(routed, w, config, pieces);
  const at::Tensor flat = routing.experts.reshape({-1});
  const at::Tensor order = at::argsort(flat, /*stable=*/true, 0, /*descending=*/false);
  at::Tensor results;  // row t k + j: choice j of token t
  {
    at::Tensor sorted = x.index_select(0, at::floor_divide(order, chosen));
    if (pieces.weighed_inputs) {
      sorted = sorted * routing.weights.reshape({-1}).index_select(0, order).unsqueeze(1).to(x.scalar_type());
    }
    // Avoids bincount(), which synchronizes with the device.
    const at::Tensor counts = at::zeros({config.count}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
    const auto products = can_group(sorted, w) ? grouped_experts : looped_experts;
    const at::Tensor outputs = products({sorted, counts}, w, config, pieces.gate, activation);
    results = at::empty_like(outputs).index_copy_(0, order, outputs);
  }
  const at::Tensor by_token = results.view({tokens, chosen, x.size(1)});
  const at::Tensor given = routing.weights.to(at::kFloat).unsqueeze(2);
  const at::Tensor weights = pieces.weighed_inputs ? at::ones_like(given) : given;
  at::Tensor sum = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  for (std::int64_t j = 0; j < chosen; ++j) sum.addcmul_(by_token.select(1, j).to(at::kFloat), weights.select(1, j));
  return sum.to(x.scalar_type());
}

// Scores [T, E], with minus infinity outside the best groups of experts.
at::Tensor of_best_groups(const at::Tensor& scores, const ExpertConfig& config) {
  if (config.groups_chosen >= config.groups) return scores;
  const at::Tensor grouped = scores.view({scores.size(0), config.groups, -1});
  const at::Tensor strength = std::get<0>(grouped.topk(config.best_of_group, -1)).sum(-1);
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
  if (config.normalized) top = top / top.sum(-1, true).clamp_min(config.least_sum);
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
