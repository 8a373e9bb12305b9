// DeepSeek-V3 and R1, and Kimi K2 with another model_type: latent attention. Dense layers come first, then experts by
// corrected sigmoid scores from the best groups, beside a shared expert.
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/latent.h"

namespace oscar {
namespace {

void deepseek_v3_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_latent(config, where, {.rank = 512, .query_rank = 1536, .nope_dim = 128, .rope_dim = 64, .value_dim = 128}, out);
  read_sigmoid_experts(config, where,
                       {.count = 256, .per_token = 8, .intermediate = 2048, .groups = {8, 4}, .scaling = 2.5}, out);
  read_dense_first(config, where, 3, out);
}

}  // namespace

extern const FamilyRow kDeepseekV3 = {
    .architecture = "DeepseekV3ForCausalLM",
    .model_type = "deepseek_v3",
    .other_type = "kimi_k2",
    .defaults = {.head_dim = 64,
                 .query_heads = 128,
                 .vocabulary = 129280,
                 .intermediate = 18432,
                 .max_position = 4096,
                 .bos = 0,
                 .eos = {1, -1, -1},
                 .reads_attention_bias = true},
    .read_config = deepseek_v3_config,
    .family = sigmoid_latent_family,
};

}  // namespace oscar
