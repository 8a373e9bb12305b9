// Tells engines which modules of a quantized checkpoint are now unquantized.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

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
