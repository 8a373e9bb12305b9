// Computes expert outputs for rows sorted by expert: with one product per expert, or one grouped product for all.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/decoder.h"

namespace oscar {

struct ExpertRows {
  at::Tensor x;       // [R, hidden], rows of expert 0 first
  at::Tensor counts;  // [E] int64: rows of each expert; they sum to R
};

// down_e(act(gate_e(x)) * up_e(x)), plus any biases: [R, hidden]. Computes one expert after another and skips experts
// without rows. Any device and dtype; synchronizes with the device.
at::Tensor looped_experts(const ExpertRows& rows, const LayerWeights& weights, const ExpertConfig& config,
                          ExpertGate kind, Activation activation);

// The same with at::_grouped_mm: two products for any number of experts, without synchronization. Needs a GPU, BF16,
// and `hidden` and expert width that are multiples of 8 (rows of 16 bytes); see can_group().
at::Tensor grouped_experts(const ExpertRows& rows, const LayerWeights& weights, const ExpertConfig& config,
                           ExpertGate kind, Activation activation);

// Whether grouped_experts() can replace looped_experts() under the conditions above.
bool can_group(const at::Tensor& x, const LayerWeights& weights);

}  // namespace oscar
