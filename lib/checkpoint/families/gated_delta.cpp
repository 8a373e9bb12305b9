#include "checkpoint/families/gated_delta.h"

#include <algorithm>

#include "base/errors.h"
#include "base/json.h"
#include "checkpoint/layer_types.h"

namespace oscar {
namespace {

std::vector<bool> read_linear_layers(const Json& config, const std::string& where, std::int64_t layers) {
  std::vector<bool> linear = layers_of_type(config, where, layers, "linear_attention", {"full_attention"});
  if (!linear.empty()) return linear;
  const std::int64_t interval = config.contains("full_attention_interval")
                                    ? json_int_within(config, "full_attention_interval", where, 1, 4096)
                                    : 4;
  for (std::int64_t i = 0; i < layers; ++i) linear.push_back((i + 1) % interval != 0);
  return linear;
}

}  // namespace

void read_gated_delta(const Json& config, const std::string& where, ModelConfig* out) {
  LinearAttention& l = out->linear;
  l.layers = read_linear_layers(config, where, out->layers);
  if (std::all_of(l.layers.begin(), l.layers.end(), [](bool linear) { return linear; })) {
    throw InputError(where + ": none of " + std::to_string(out->layers) +
                     " layers has full attention ('layer_types', 'full_attention_interval'), so the model has no KV "
                     "cache to quantize");
  }
  const auto size = [&](const char* key, std::int64_t most, std::int64_t fallback) {
    return config.contains(key) ? json_int_within(config, key, where, 1, most) : fallback;
  };
  l.key_heads = size("linear_num_key_heads", 4096, 16);
  l.value_heads = size("linear_num_value_heads", 4096, 32);
  l.key_dim = size("linear_key_head_dim", 4096, 128);
  l.value_dim = size("linear_value_head_dim", 4096, 128);
  l.kernel = size("linear_conv_kernel_dim", 64, 4);
  if (l.value_heads % l.key_heads != 0) {
    throw InputError(where + ": 'linear_num_value_heads' is " + std::to_string(l.value_heads) +
                     ", expected a multiple of 'linear_num_key_heads', which is " + std::to_string(l.key_heads));
  }
  out->output_gate = true;
}

Family gated_delta_family(const ModelConfig& config) {
  Family family;
  family.pieces.norm = NormKind::kOnePlus;
  family.add_qk_norm();
  family.add_biases(config);
  family.linear_conv = "linear_attn.conv1d.weight";
  family.linear_decay_bias = "linear_attn.dt_bias";
  family.linear_log_rate = "linear_attn.A_log";
  family.linear_norm = "linear_attn.norm.weight";
  family.linear_out = "linear_attn.out_proj.weight";
  return family;
}

void add_weighted_experts(Family& family) {
  family.add_experts();
  family.shared_gate = "mlp.shared_expert.gate_proj.weight";
  family.shared_up = "mlp.shared_expert.up_proj.weight";
  family.shared_down = "mlp.shared_expert.down_proj.weight";
  family.shared_weight = "mlp.shared_expert_gate.weight";
}

}  // namespace oscar
