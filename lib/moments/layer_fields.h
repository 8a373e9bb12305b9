// The tensors of LayerMoments by name: one list that saving, loading, merging, checking and checkpoints share.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "moments/statistics.h"

namespace oscar {

struct MomentField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool gram;  // [Hkv, d, d], symmetric; otherwise [Hkv, d]
};

// FP64 moments of one layer; all are sums except wo_gram, which belongs to the weights.
inline constexpr std::array<MomentField, 8> kMomentFields = {{
    {"q_gram", &LayerMoments::q_gram, true},
    {"k_gram", &LayerMoments::k_gram, true},
    {"k_sum", &LayerMoments::k_sum, false},
    {"v_gram", &LayerMoments::v_gram, true},
    {"v_sum", &LayerMoments::v_sum, false},
    {"o_gram", &LayerMoments::o_gram, true},
    {"energy_gram", &LayerMoments::energy_gram, true},
    {"wo_gram", &LayerMoments::wo_gram, true},
}};

// Optional sums of the far pairs, all or none.
struct FisherField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool gram;  // [Hkv, d, d]; otherwise [3]
};

inline constexpr std::array<FisherField, 3> kFisherFields = {{
    {"fisher_q_gram", &LayerMoments::fisher_q_gram, true},
    {"fisher_v_weight", &LayerMoments::fisher_v_weight, true},
    {"fisher_count", &LayerMoments::fisher_count, false},
}};

struct RowField {
  const char* name;
  at::Tensor LayerMoments::*tensor;
  bool query;  // [R, Hq, d]; otherwise [R, Hkv, d]
};

inline constexpr std::array<RowField, 3> kRowFields = {{
    {"q", &LayerMoments::rows_q, true},
    {"k", &LayerMoments::rows_k, false},
    {"v", &LayerMoments::rows_v, false},
}};

}  // namespace oscar
