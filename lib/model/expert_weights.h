// Weights of experts: one tensor per expert, as in most checkpoints on disk, or one tensor for all.
#pragma once

#include <functional>
#include <string>

#include "model/weights.h"

namespace oscar {

bool has_experts(const ModelConfig& config, std::int64_t layer);

// Calls `visit` with the name and shape of every expert and router tensor of a layer, in the checkpoint's layout.
void visit_expert_tensors(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                          const std::function<void(const std::string&, const std::vector<std::int64_t>&)>& visit);

// Fills in router and expert_* of `weights`. InputError as in load_layer_weights().
void load_expert_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                         const DecoderOptions& options, LayerWeights& weights);

}  // namespace oscar
