// The tensors of LayerMoments by name: one list that saving, loading, merging, checking and checkpoints share.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "statistics/statistics.h"

namespace oscar {

struct MomentField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool gram;               // [Hkv, d, d], symmetric; otherwise [Hkv, d]
  std::int64_t since = 1;  // format version that brought it; required from then on
};

// FP64 moments of one layer; all are sums except wo_gram, which belongs to the weights.
inline constexpr std::array<MomentField, 11> kMomentFields = {{
    {"q_gram", &LayerMoments::q_gram, true},
    {"k_gram", &LayerMoments::k_gram, true},
    {"k_sum", &LayerMoments::k_sum, false},
    {"v_gram", &LayerMoments::v_gram, true},
    {"v_sum", &LayerMoments::v_sum, false},
    {"o_gram", &LayerMoments::o_gram, true},
    {"energy_gram", &LayerMoments::energy_gram, true},
    {"wo_gram", &LayerMoments::wo_gram, true},
    {"pre_q_gram", &LayerMoments::pre_q_gram, true, 2},
    {"pre_k_gram", &LayerMoments::pre_k_gram, true, 2},
    {"pre_k_sum", &LayerMoments::pre_k_sum, false, 2},
}};

// Optional sums of the far pairs, all or none.
struct MetricField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool gram;  // [Hkv, d, d]; otherwise counts, [2] of far pairs and [1] of the KL metric
  std::int64_t since = 1;
};

inline constexpr std::array<MetricField, 4> kFarPairFields = {{
    {"fisher_q_gram", &LayerMoments::far_q_gram, true},
    {"fisher_v_weight", &LayerMoments::far_v_weight, true},
    {"fisher_pre_q_gram", &LayerMoments::far_pre_q_gram, true, 2},
    {"fisher_count", &LayerMoments::far_count, false},
}};

// Optional sums of the KL metric, all or none.
inline constexpr std::array<MetricField, 4> kKlFields = {{
    {"kl_k_gram", &LayerMoments::kl_k_gram, true},
    {"kl_pre_k_gram", &LayerMoments::kl_pre_k_gram, true},
    {"kl_v_gram", &LayerMoments::kl_v_gram, true},
    {"kl_count", &LayerMoments::kl_count, false},
}};

// Energies of the residual stream with their counts. All are sums.
struct EnergyField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  std::int64_t since = 1;
  bool required = false;  // from that format on
};

inline constexpr std::array<EnergyField, 2> kEnergyFields = {{
    {"attention_residual", &LayerMoments::attention_residual, 2, true},
    {"residual_energy", &LayerMoments::residual_energy},
}};

struct RowField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool query;  // [R, Hq, d]; otherwise [R, Hkv, d]
};

// The row sample, all or none.
inline constexpr std::array<RowField, 3> kRowFields = {{
    {"q", &LayerMoments::rows_q, true},
    {"k", &LayerMoments::rows_k, false},
    {"v", &LayerMoments::rows_v, false},
}};

// Squared gradients of these rows, both or none.
inline constexpr std::array<RowField, 2> kRowGradientFields = {{
    {"pre_k_fisher", &LayerMoments::rows_pre_k_squared_gradient, false},
    {"v_fisher", &LayerMoments::rows_v_squared_gradient, false},
}};

}  // namespace oscar
