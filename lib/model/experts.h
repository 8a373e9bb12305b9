// The MLP of layers whose tokens choose between experts.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/decoder.h"

namespace oscar {

struct Routing {
  at::Tensor experts;  // [T, k] int64, largest score (with its correction) first
  at::Tensor weights;  // [T, k] FP32, or rounded to the activation dtype where the family does that
};

// logits = x router^T + bias in the activation dtype (Pieces::wide_router: in FP32), then as the family's RouterKind
// says. With groups, the best are those whose two best experts (or the best one) have the largest sum (DeepSeek-V3,
// arXiv:2412.19437, section 2.1.2, which also has the correction that takes part in the choice but not in the weights).
// expert_scale comes last.
Routing route(const at::Tensor& x, const LayerWeights& weights, const ExpertConfig& config, const Pieces& pieces);

// sum over a token's experts e of weight_e down_e(act(gate_e(x)) * up_e(x)): [T, hidden] -> [T, hidden]. The router
// reads `routed` [T, hidden], in most families x itself. Tokens are
// sorted by expert and only experts with tokens are computed; the sum is in FP32 and in the order of `experts`, so it
// does not depend on how tokens are packed.
at::Tensor expert_mlp(const at::Tensor& x, const at::Tensor& routed, const LayerWeights& weights,
                      const ExpertConfig& config, const Pieces& pieces, Activation activation);

}  // namespace oscar
