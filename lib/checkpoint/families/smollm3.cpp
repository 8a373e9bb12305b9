// SmolLM3: Llama with some layers without RoPE: every fourth, unless no_rope_layers lists them (1 means with RoPE).
#include "base/errors.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void smollm3_config(const Json& config, const std::string& where, ModelConfig* out) {
  const std::int64_t interval = json_int(config, "no_rope_layer_interval", where, 4);
  if (interval < 1) {
    throw InputError(where + ": 'no_rope_layer_interval' is " + std::to_string(interval) + ", expected at least 1");
  }
  const auto list = config.find("no_rope_layers");
  const bool listed = list != config.end() && !list->is_null();
  if (listed && (!list->is_array() || list->size() < static_cast<std::size_t>(out->layers))) {
    throw InputError(where + ": 'no_rope_layers' must be a list of at least " + std::to_string(out->layers) +
                     " numbers 0 or 1");
  }
  for (std::int64_t i = 0; i < out->layers; ++i) {
    bool turns = (i + 1) % interval != 0;
    if (listed) {
      const Json& item = (*list)[static_cast<std::size_t>(i)];
      if (!item.is_number_integer()) throw InputError(where + ": 'no_rope_layers' must be a list of numbers 0 or 1");
      turns = item.get<std::int64_t>() != 0;
    }
    out->layer_rope.push_back(turns ? LayerRope::kGlobal : LayerRope::kNone);
  }
  if (json_bool(config, "use_sliding_window", where, false)) {
    throw InputError(where +
                     ": 'use_sliding_window' is not supported for SmolLM3, whose published models do not use it");
  }
}

}  // namespace

extern const FamilyRow kSmolLm3 = {
    .architecture = "SmolLM3ForCausalLM",
    .model_type = "smollm3",
    .defaults = {.kv_heads = 4,
                 .max_position = 32768,
                 .bos = 128000,
                 .eos = {128001, -1, -1},
                 .rope_theta = 2000000.0,
                 .tied = true,
                 .reads_attention_bias = true,
                 .reads_mlp_bias = true},
    .read_config = smollm3_config,
    .family = llama_layers,
};

}  // namespace oscar
