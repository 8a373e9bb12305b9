// The tensors of one layer that absorb its value transform.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "transform/transform.h"
#include "weights/stored_weight.h"

namespace oscar {

struct NewTensor {
  std::string name;     // name in the checkpoint
  std::string sibling;  // a stored tensor; the new tensor goes into its shard
  at::Tensor value;     // FP64
};

// The projections of a layer that are rewritten or get a bias: v and o, q and k if they get biases, and any quantized q
// or k. Engines load q, k and v as one tensor of one type, so all three must then be unquantized.
std::vector<StoredWeight> absorbing_weights(const Checkpoint& source, std::int64_t layer, bool new_biases);

// new_biases: adds biases at q, k, v and o that the architecture did not have (zero if nothing is absorbed).
std::vector<NewTensor> absorb_layer(const Checkpoint& source, const LayerTransform& layer, bool new_biases);

// Tells engines which modules of a quantized checkpoint are now unquantized.

// Adds the modules ("model.layers.0.self_attn.v_proj") to the exclusions in 'quantization_config' of a config.json:
// - 'ignore' (compressed-tensors, modelopt);
// - 'modules_to_not_convert' (fp8, awq, mxfp4);
// - 'dynamic' with a skip pattern (gptq);
// - lists of other names that already exist.
// Does nothing without a 'quantization_config'.
void add_plain_modules(Json& config, const std::vector<std::string>& modules);

// The same for hf_quant_config.json, modelopt's file beside config.json.
void add_plain_modules_modelopt(Json& file, const std::vector<std::string>& modules);

}  // namespace oscar
