// GLM-4.7-Flash: like DeepSeek-V3. mlp_layer_types lists the layers with experts; without it, all except the first
// dense ones have experts.
#include "base/errors.h"
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/latent.h"

namespace oscar {
namespace {

void read_layer_types(const Json& config, const std::string& where, ModelConfig* out) {
  read_dense_first(config, where, 1, out);
  const auto types = config.find("mlp_layer_types");
  if (types == config.end() || types->is_null()) return;
  const std::string expected =
      ": 'mlp_layer_types' must be a list of " + std::to_string(out->layers) + " words, each dense or sparse";
  if (!types->is_array() || types->size() != static_cast<std::size_t>(out->layers)) {
    throw InputError(where + expected);
  }
  for (std::size_t i = 0; i < types->size(); ++i) {
    const bool sparse = (*types)[i] == "sparse";
    if (!sparse && (*types)[i] != "dense") throw InputError(where + expected);
    out->experts.layers[i] = sparse;
  }
}

void glm4_moe_lite_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_latent(config, where, {.rank = 512, .query_rank = 768, .nope_dim = 192, .rope_dim = 64, .value_dim = 256}, out);
  read_sigmoid_experts(config, where,
                       {.count = 64, .per_token = 4, .intermediate = 1536, .groups = {1, 1}, .scaling = 1.8}, out);
  read_layer_types(config, where, out);
}

}  // namespace

extern const FamilyRow kGlm4MoeLite = {
    .architecture = "Glm4MoeLiteForCausalLM",
    .model_type = "glm4_moe_lite",
    .defaults = {.head_dim = 64,
                 .query_heads = 20,
                 .vocabulary = 154880,
                 .intermediate = 10240,
                 .max_position = 202752,
                 .bos = 0,
                 .eos = {1, -1, -1},
                 .rms_eps = 1e-5,
                 .reads_attention_bias = true},
    .read_config = glm4_moe_lite_config,
    .family = sigmoid_latent_family,
};

}  // namespace oscar
