// ERNIE 4.5, dense (0.3B): Llama's layers with interleaved RoPE.
#include "checkpoint/families/ernie.h"

namespace oscar {

void read_ernie(const Json& config, const std::string& where, ModelConfig* out) {
  out->rope.interleaved = true;
  const bool bias = json_bool(config, "use_bias", where, false);
  out->qkv_bias = out->output_bias = out->mlp_bias = bias;
}

extern const FamilyRow kErnie4_5 = {
    .architecture = "Ernie4_5ForCausalLM",
    .model_type = "ernie4_5",
    .defaults = ernie_defaults(128, 2),
    .read_config = read_ernie,
    .family = llama_layers,
};

}  // namespace oscar
