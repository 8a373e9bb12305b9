#include "model/families/family.h"

#include <map>

#include "base/errors.h"

namespace oscar {

std::string Family::layer_tensor(std::int64_t layer, const std::string& name) const {
  return layer_prefix + std::to_string(layer) + "." + name;
}

void Family::add_qkv_bias() {
  q_bias = "self_attn.q_proj.bias";
  k_bias = "self_attn.k_proj.bias";
  v_bias = "self_attn.v_proj.bias";
}

void Family::add_output_bias() { o_bias = "self_attn.o_proj.bias"; }

void Family::add_mlp_bias() {
  gate_bias = "mlp.gate_proj.bias";
  up_bias = "mlp.up_proj.bias";
  down_bias = "mlp.down_proj.bias";
}

Family family_of(const ModelConfig& config) {
  static const std::map<std::string, Family (*)(const ModelConfig&)> families = {
      {"LlamaForCausalLM", llama_family},
      {"MistralForCausalLM", mistral_family},
      {"Qwen2ForCausalLM", qwen2_family},
      {"Qwen3ForCausalLM", qwen3_family},
  };
  const auto found = families.find(config.architecture);
  if (found == families.end()) {
    throw InputError("The architecture " + config.architecture + " is not supported; supported are " +
                     supported_architectures() + ".");
  }
  return found->second(config);
}

}  // namespace oscar
