// Weights of experts: one tensor for each, as most checkpoints on disk have them, or one for all.
#pragma once

#include <functional>
#include <string>

#include "model/weights.h"

namespace oscar {

bool has_experts(const ModelConfig& config, std::int64_t layer);

// Calls `visit` with the name and the shape of every tensor of a layer's experts and router, in the layout the
// checkpoint holds.
void visit_expert_tensors(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                          const std::function<void(const std::string&, const std::vector<std::int64_t>&)>& visit);

// Fills in router and expert_* of `weights`. InputError as load_layer_weights().
void load_expert_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                         const DecoderOptions& options, LayerWeights& weights);

}  // namespace oscar
