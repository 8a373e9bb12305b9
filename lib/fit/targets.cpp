#include "fit/targets.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace oscar {
namespace {

const char* gram_name(Side side, ValueTarget value_target) {
  if (side == Side::kKey) return "q_gram";
  return value_target == ValueTarget::kOutput ? "wo_gram" : "o_gram";
}

std::vector<std::string> names_of(const std::string& base, Scope scope, std::int64_t kv_heads) {
  if (scope == Scope::kLayer) return {base};
  std::vector<std::string> names;
  for (std::int64_t head = 0; head < kv_heads; ++head) names.push_back(base + " head " + std::to_string(head));
  return names;
}

}  // namespace

const char* value_target_name(ValueTarget target) { return target == ValueTarget::kExact ? "exact" : "output"; }

at::Tensor head_moments(const Statistics& statistics, std::size_t layer, Side side, ValueTarget value_target) {
  const LayerMoments& moments = statistics.layers[layer];
  const double tokens = static_cast<double>(std::max<std::int64_t>(statistics.tokens, 1));
  const double gqa_group = static_cast<double>(statistics.query_heads / statistics.kv_heads);
  if (side == Side::kKey) return moments.q_gram / (tokens * gqa_group);
  return (value_target == ValueTarget::kOutput ? moments.wo_gram : moments.o_gram / tokens) / gqa_group;
}

at::Tensor scope_moments(const at::Tensor& heads, Scope scope) {
  return scope == Scope::kHead ? heads : heads.mean(0, /*keepdim=*/true);
}

std::vector<std::string> target_names(std::int64_t layer, Side side, ValueTarget value_target, Scope scope,
                                      std::int64_t kv_heads) {
  return names_of("layers." + std::to_string(layer) + "." + gram_name(side, value_target), scope, kv_heads);
}

}  // namespace oscar
