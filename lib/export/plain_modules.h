// Telling engines that modules of a quantized checkpoint are plain now.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

// Adds the modules ("model.layers.0.self_attn.v_proj") to what the 'quantization_config' of a config.json leaves out:
// 'ignore' (compressed-tensors, modelopt), 'modules_to_not_convert' (fp8, awq, mxfp4), or 'dynamic' with a pattern of
// what to skip (gptq); also to lists of other names that are there. Nothing for a config without one.
void add_plain_modules(Json& config, const std::vector<std::string>& modules);

// The same for hf_quant_config.json, the file of modelopt beside config.json.
void add_plain_modules_modelopt(Json& file, const std::vector<std::string>& modules);

}  // namespace oscar
