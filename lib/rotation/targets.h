// The second moments whose eigenvectors make the rotation (published definition: the rotation script of the OSCAR
// release, objectives "qqt" and "sst").
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "layout/side.h"
#include "statistics/statistics.h"

namespace oscar {

enum class Scope { kLayer, kHead };  // one rotation for a layer, or one for each KV head
// V^T S^T S V = O^T O, the published diagonal proxy, or W_O^T W_O of the output projection.
enum class ValueTarget { kExact, kEnergy, kOutput };

// Per-token moments of each KV head, [Hkv, d, d] FP64. g = Hq/Hkv, T = tokens.
//   keys:            C_h = Q_h^T Q_h / (T g)
//   values, exact:   O_h^T O_h / (T g)
//   values, energy:  (1/T) sum_t w_t v_t^T v_t, w_t = k_t C_h k_t^T scaled to mean 1
//   values, output:  sum over the group of W_O^T W_O / g, a property of the weights
const char* value_target_name(ValueTarget target);  // "exact", "energy", "output"
at::Tensor head_moments(const Statistics& statistics, std::size_t layer, Side side, ValueTarget value_target);

// Scope head: the same [Hkv, d, d]. Scope layer: their mean over KV heads [1, d, d].
at::Tensor scope_moments(const at::Tensor& heads, Scope scope);

// "layers.3.q_gram head 2" or "layers.3.q_gram" for scope layer: what messages call a target.
std::vector<std::string> target_names(std::int64_t layer, Side side, ValueTarget value_target, Scope scope,
                                      std::int64_t kv_heads);

// The same for targets that are the metric of the KL: "layers.3.kl_k_gram head 2".
std::vector<std::string> kl_target_names(std::int64_t layer, Side side, Scope scope, std::int64_t kv_heads);

// NumericalError naming the tensor when anything the fit reads is NaN or infinite; InputError for a missing tensor or
// a wrong shape.
void check_moments(const Statistics& statistics);

}  // namespace oscar
