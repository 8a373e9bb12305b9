// MiniMax-M2, 2.1 and 2.5: RMSNorm over the full projections of q and k, RoPE over the first rotary_dim channels, and
// experts by corrected sigmoid scores in every layer.
#include "base/errors.h"
#include "base/json.h"
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

void refuse_other_attention(const Json& config, const std::string& where) {
  const auto kinds = config.find("attn_type_list");
  if (kinds == config.end() || kinds->is_null()) return;
  for (const Json& kind : *kinds) {
    if (kind != 1) {
      throw InputError(where +
                       ": 'attn_type_list' names layers without full attention (a number other than 1), which " +
                       "are not supported");
    }
  }
}

void minimax_m2_config(const Json& config, const std::string& where, ModelConfig* out) {
  refuse_other_attention(config, where);
  double partial = 1.0;
  if (const auto width = config.find("rotary_dim"); width != config.end() && !width->is_null()) {
    partial = static_cast<double>(json_int_within(config, "rotary_dim", where, 2, out->head_dim)) /
              static_cast<double>(out->head_dim);
  }
  out->rope = parse_rope(config, {.theta = 5e6, .reads_partial = true, .partial = partial}, out->max_position, where);
  read_experts(config, where, {.count = 256, .per_token = 8, .intermediate = out->intermediate, .own_size = false},
               out);
}

Family minimax_m2_family(const ModelConfig&) {
  Family family;
  family.pieces.router = RouterKind::kSigmoid;
  family.pieces.rounded_weights = false;
  family.add_qk_norm();
  family.whole_qk_norm = true;
  family.add_mixtral_experts();
  family.router_correction = "block_sparse_moe.e_score_correction_bias";
  family.experts_router_correction = "mlp.e_score_correction_bias";
  return family;
}

}  // namespace

extern const FamilyRow kMinimaxM2 = {
    .architecture = "MiniMaxM2ForCausalLM",
    .model_type = "minimax_m2",
    .defaults = {.head_dim = 128,
                 .kv_heads = 8,
                 .max_position = 196608,
                 .bos = 200034,
                 .eos = {200020, -1, -1},
                 .own_rope = true,
                 .qk_norm = true},
    .read_config = minimax_m2_config,
    .family = minimax_m2_family,
};

}  // namespace oscar
