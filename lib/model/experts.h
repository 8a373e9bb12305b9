// The MLP of layers whose tokens choose among experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

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

// Computes expert outputs for rows sorted by expert: with one product per expert, or one grouped product for all.
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

// Weights of experts: one tensor per expert, as in most checkpoints on disk, or one tensor for all.

bool has_experts(const ModelConfig& config, std::int64_t layer);

// Calls `visit` with the name and shape of every expert and router tensor of a layer, in the checkpoint's layout.
void visit_expert_tensors(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                          const std::function<void(const std::string&, const std::vector<std::int64_t>&)>& visit);

// Fills in router and expert_* of `weights`. InputError as in load_layer_weights().
void load_expert_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                         const DecoderOptions& options, LayerWeights& weights);

}  // namespace oscar
