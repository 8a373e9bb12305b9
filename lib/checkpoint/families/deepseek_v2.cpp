// DeepSeek-V2 and V2-Lite: latent attention with interleaved RoPE. Dense layers come first. Then experts are chosen by
// softmax scores (topk_method greedy, or from the best groups) beside shared experts.
#include "base/errors.h"
#include "base/foreign_text.h"
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/latent.h"

namespace oscar {
namespace {

void deepseek_v2_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_latent(config, where, {.rank = 512, .query_rank = 1536, .nope_dim = 128, .rope_dim = 64, .value_dim = 128}, out);
  out->rope.interleaved = true;
  read_experts(config, where, {.count = 64, .per_token = 0, .intermediate = 1407, .count_key = "n_routed_experts"},
               out);
  ExpertConfig& e = out->experts;
  if (e.per_token == 0) throw InputError(where + ": the key 'num_experts_per_tok' is missing");
  require_word(config, "scoring_func", where, "softmax");
  const std::string method = json_string(config, "topk_method", where, "greedy");
  e.best_of_group = 1;
  if (method == "group_limited_greedy") {
    read_expert_groups(config, where, {1, 1}, &e);
  } else if (method != "greedy") {
    throw InputError(where + ": 'topk_method' is " + quote_name(method) + ", expected greedy or group_limited_greedy");
  }
  e.normalized = false;
  if (json_bool(config, "norm_topk_prob", where, false)) {
    throw InputError(where + ": 'norm_topk_prob' is true, which is not supported for this architecture");
  }
  e.scaling = json_number(config, "routed_scaling_factor", where, 1.0);
  read_shared_experts(config, "n_shared_experts", where, 2, &e);
  read_dense_first(config, where, 0, out);
}

Family deepseek_v2_family(const ModelConfig& config) {
  Family family = latent_family(config);
  family.pieces.rounded_weights = false;
  family.pieces.wide_router = true;
  family.add_experts();
  family.add_shared_expert();
  return family;
}

}  // namespace

extern const FamilyRow kDeepseekV2 = {
    .architecture = "DeepseekV2ForCausalLM",
    .model_type = "deepseek_v2",
    .defaults = {.head_dim = 64,
                 .query_heads = 32,
                 .vocabulary = 102400,
                 .intermediate = 11008,
                 .bos = 1,
                 .eos = {2, -1, -1},
                 .reads_attention_bias = true},
    .read_config = deepseek_v2_config,
    .family = deepseek_v2_family,
};

}  // namespace oscar
