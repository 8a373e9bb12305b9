// The MLP of layers whose tokens choose among experts.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/decoder.h"

namespace oscar {

struct Routing {
  at::Tensor experts;  // [T, k] int64, largest (corrected) score first
  at::Tensor weights;  // [T, k] FP32, or rounded to the activation dtype if the family does that
};

// Computes logits = x router^T + bias in the activation dtype (with Pieces::wide_router in FP32), then applies the
// family's RouterKind. With groups, the groups whose best two experts (or best one) have the largest sum win. Source:
// DeepSeek-V3, arXiv:2412.19437, section 2.1.2. It also defines the correction, which affects the choice but not the
// weights. expert_scale is applied last.
Routing route(const at::Tensor& x, const LayerWeights& weights, const ExpertConfig& config, const Pieces& pieces);

// Sum over a token's experts e of weight_e down_e(act(gate_e(x)) * up_e(x)): [T, hidden] -> [T, hidden]. The router
// reads `routed` [T, hidden], which is x in most families.
// Tokens are sorted by expert, and experts without tokens are skipped. The sum is in FP32 and in the order of
// `experts`, so it does not depend on how tokens are packed.
at::Tensor expert_mlp(const at::Tensor& x, const at::Tensor& routed, const LayerWeights& weights,
                      const ExpertConfig& config, const Pieces& pieces, Activation activation);

}  // namespace oscar
