// The tensors of LayerMoments by name: one list for saving, loading, merging, checking and checkpoints.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "statistics/statistics.h"

namespace oscar {

struct MomentField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool gram;  // [Hkv, d, d], symmetric; otherwise [Hkv, d]
};

// FP64 moments of one layer. All are sums except wo_gram, which depends only on the weights.
inline constexpr std::array<MomentField, 11> kMomentFields = {{
    {"q_gram", &LayerMoments::q_gram, true},
    {"k_gram", &LayerMoments::k_gram, true},
    {"k_sum", &LayerMoments::k_sum, false},
    {"v_gram", &LayerMoments::v_gram, true},
    {"v_sum", &LayerMoments::v_sum, false},
    {"o_gram", &LayerMoments::o_gram, true},
    {"energy_gram", &LayerMoments::energy_gram, true},
    {"wo_gram", &LayerMoments::wo_gram, true},
    {"pre_q_gram", &LayerMoments::pre_q_gram, true},
    {"pre_k_gram", &LayerMoments::pre_k_gram, true},
    {"pre_k_sum", &LayerMoments::pre_k_sum, false},
}};

// Optional sums over pairs outside the windows: all or none.
struct MetricField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool gram;  // [Hkv, d, d]; otherwise counts, [2]
};

inline constexpr std::array<MetricField, 4> kFarPairFields = {{
    {"far_q_gram", &LayerMoments::far_q_gram, true},
    {"far_v_weight", &LayerMoments::far_v_weight, true},
    {"far_pre_q_gram", &LayerMoments::far_pre_q_gram, true},
    {"far_count", &LayerMoments::far_count, false},
}};

// Energies of the residual stream with their token counts. All are sums.
struct EnergyField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool required = false;
};

inline constexpr std::array<EnergyField, 3> kEnergyFields = {{
    {"attention_residual", &LayerMoments::attention_residual, true},
    {"attention_gain", &LayerMoments::attention_gain},
    {"residual_energy", &LayerMoments::residual_energy},
}};

struct RowField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool query;  // [R, Hq, d]; otherwise [R, Hkv, d]
};

// The row sample: all or none.
inline constexpr std::array<RowField, 3> kRowFields = {{
    {"q", &LayerMoments::rows_q, true},
    {"k", &LayerMoments::rows_k, false},
    {"v", &LayerMoments::rows_v, false},
}};

}  // namespace oscar
