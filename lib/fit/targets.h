// The second moments whose eigenvectors form the rotation (published definition: the rotation script of the OSCAR
// release, objectives "qqt" and "sst").
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "layout/side.h"
#include "statistics/statistics.h"

namespace oscar {

enum class Scope { kLayer, kHead };  // one rotation per layer, or one per KV head
// V^T S^T S V = O^T O, or W_O^T W_O of the output projection.
enum class ValueTarget { kExact, kOutput };

// Per-token moments of each KV head, [Hkv, d, d] FP64. g = Hq/Hkv, T = tokens.
//   keys:            C_h = Q_h^T Q_h / (T g)
//   values, exact:   O_h^T O_h / (T g)
//   values, output:  sum over the group of W_O^T W_O / g, which depends only on the weights
const char* value_target_name(ValueTarget target);  // "exact", "output"
at::Tensor head_moments(const Statistics& statistics, std::size_t layer, Side side, ValueTarget value_target);

// Scope head: the same [Hkv, d, d]. Scope layer: their mean over KV heads [1, d, d].
at::Tensor scope_moments(const at::Tensor& heads, Scope scope);

// Names of targets in messages: "layers.3.q_gram head 2", or "layers.3.q_gram" for scope layer.
std::vector<std::string> target_names(std::int64_t layer, Side side, ValueTarget value_target, Scope scope,
                                      std::int64_t kv_heads);

}  // namespace oscar
