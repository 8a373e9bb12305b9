// Seed-OSS: Llama's layers with biases on q, k and v; a separate key controls o's bias.
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void seed_oss_config(const Json& config, const std::string& where, ModelConfig* out) {
  out->output_bias = json_bool(config, "attention_out_bias", where, false);
}

}  // namespace

extern const FamilyRow kSeedOss = {
    .architecture = "SeedOssForCausalLM",
    .model_type = "seed_oss",
    .defaults = {.head_dim = 128,
                 .kv_heads = 8,
                 .max_position = 524288,
                 .bos = 0,
                 .eos = {2, -1, -1},
                 .attention_bias = true,
                 .reads_attention_bias = true,
                 .reads_mlp_bias = true,
                 .output_bias = false},
    .read_config = seed_oss_config,
    .family = llama_layers,
};

}  // namespace oscar
