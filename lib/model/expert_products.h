// What experts make of rows that are sorted by expert: a product for each expert, or one grouped product for all.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/decoder.h"

namespace oscar {

struct ExpertRows {
  at::Tensor x;       // [R, hidden], rows of expert 0 first
  at::Tensor counts;  // [E] int64: rows of each expert, which sum up to R
};

// down_e(act(gate_e(x)) * up_e(x)), with biases where there are some: [R, hidden]. One expert after another; only those
// with rows are computed. Any device and dtype; waits for the device.
at::Tensor looped_experts(const ExpertRows& rows, const LayerWeights& weights, const ExpertConfig& config,
                          ExpertGate kind, Activation activation);

// The same by at::_grouped_mm: two products, whatever the number of experts, and nothing waits for the device. On a GPU
// for BF16, with `hidden` and the width of experts multiples of 8 (rows of 16 bytes), as can_group() says.
at::Tensor grouped_experts(const ExpertRows& rows, const LayerWeights& weights, const ExpertConfig& config,
                           ExpertGate kind, Activation activation);

// Whether grouped_experts() may take the place of looped_experts(): as above.
bool can_group(const at::Tensor& x, const LayerWeights& weights);

}  // namespace oscar
