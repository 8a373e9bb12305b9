// Ministral 3: Mistral with YaRN, and queries that grow with the logarithm of the position after the original context.
// Also the text model in Mistral's multimodal wrapper.
#include "base/json.h"
#include "checkpoint/families/family.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

void ministral3_config(const Json& config, const std::string& where, ModelConfig* out) {
  Json whole = config;
  Json rope;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (const auto it = config.find(key); it != config.end() && it->is_object() && !it->empty()) rope = *it;
  }
  if (rope.is_null()) {  // for a config.json without RoPE keys
    rope = {{"rope_type", "yarn"},
            {"rope_theta", 1000000.0},
            {"factor", 16.0},
            {"original_max_position_embeddings", 16384},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0},
            {"llama_4_scaling_beta", 0.1}};
    whole["rope_parameters"] = rope;
  }
  out->rope = parse_rope(whole, {}, out->max_position, where);
  out->query_scale.beta = json_number(rope, "llama_4_scaling_beta", where);
  constexpr const char* kLength = "original_max_position_embeddings";
  out->query_scale.length = static_cast<double>(json_int_within(rope, kLength, where, 1, std::int64_t{1} << 40));
}

}  // namespace

extern const FamilyRow kMinistral3 = {
    .architecture = "Ministral3ForCausalLM",
    .model_type = "ministral3",
    .wrapper = "Mistral3ForConditionalGeneration",
    .wrapper_type = "mistral3",
    .wrapper_ties = true,
    .named_inside = true,
    .defaults = {.head_dim = 128,
                 .query_heads = 32,
                 .kv_heads = 8,
                 .vocabulary = 131072,
                 .intermediate = 14336,
                 .max_position = 262144,
                 .bos = 1,
                 .eos = {2, -1, -1},
                 .rms_eps = 1e-5,
                 .own_rope = true,
                 .sliding = SlidingLayers::kEveryLayer,
                 .window = 0},
    .read_config = ministral3_config,
    .family = [](const ModelConfig&) { return Family{}; },
};

}  // namespace oscar
