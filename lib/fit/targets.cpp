#include "fit/targets.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "base/parallel.h"
#include "statistics/all_finite.h"

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

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

void check_tensor(const at::Tensor& tensor, const std::string& name, at::IntArrayRef shape) {
  if (!tensor.defined()) throw InputError(name + ": is missing from the statistics; collect them again");
  if (tensor.sizes() != shape) {
    throw InputError(name + ": has shape " + shape_text(tensor.sizes()) + ", expected " + shape_text(shape));
  }
  if (!all_finite(tensor)) throw NumericalError(name + ": holds NaN or infinity; collect the statistics again");
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

void check_moments(const Statistics& statistics) {
  const std::int64_t heads = statistics.kv_heads;
  const std::int64_t d = statistics.head_dim;
  if (statistics.layers.empty() || heads < 1 || d < 1 || statistics.query_heads < heads ||
      statistics.query_heads % heads != 0) {
    throw InputError("statistics: " + std::to_string(statistics.layers.size()) + " layers, " +
                     std::to_string(statistics.query_heads) + " query and " + std::to_string(heads) +
                     " KV heads of size " + std::to_string(d) + " is no usable geometry");
  }
  parallel_tasks(std::ssize(statistics.layers), [&](std::int64_t i) {
    const LayerMoments& m = statistics.layers[static_cast<std::size_t>(i)];
    const std::string prefix = "layers." + std::to_string(i) + ".";
    check_tensor(m.q_gram, prefix + "q_gram", {heads, d, d});
    check_tensor(m.k_gram, prefix + "k_gram", {heads, d, d});
    check_tensor(m.v_gram, prefix + "v_gram", {heads, d, d});
    check_tensor(m.o_gram, prefix + "o_gram", {heads, d, d});
    check_tensor(m.energy_gram, prefix + "energy_gram", {heads, d, d});
    check_tensor(m.wo_gram, prefix + "wo_gram", {heads, d, d});
    if (!m.rows_k.defined()) return;  // the row sample is optional
    const std::int64_t rows = m.rows_k.size(0);
    check_tensor(m.rows_q, prefix + "rows.q", {rows, statistics.query_heads, d});
    check_tensor(m.rows_k, prefix + "rows.k", {rows, heads, d});
    check_tensor(m.rows_v, prefix + "rows.v", {rows, heads, d});
  });
}

}  // namespace oscar
