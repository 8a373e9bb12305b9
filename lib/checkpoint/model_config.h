// config.json as typed facts. Accepts transformers v4 (rope_theta, rope_scaling) and v5 (rope_parameters) spelling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/weight_config.h"

namespace oscar {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn, kLongRope, kDynamic, kProportional };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                     // linear, llama3, yarn, dynamic, proportional
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  std::int64_t original_max_position = 0;  // llama3, yarn, longrope; dynamic: the model's maximum
  double beta_fast = 32.0;                 // yarn
  double beta_slow = 1.0;                  // yarn
  double attention_factor = 1.0;  // yarn, longrope: multiplies cos and sin; the parser fills in absent defaults
  bool truncate = true;           // yarn: round the correction range to whole dimensions
  double partial = 1.0;           // share of a head's channels that turn, the first ones; proportional: of its pairs
  std::vector<double> short_factor, long_factor;  // longrope: [turning / 2], of wavelengths
  // longrope, dynamic: tokens of the longest sequence of the run, which choose the frequencies; 0: none is long.
  // No fact of config.json: Checkpoint::set_run_length().
  std::int64_t run_length = 0;
  bool interleaved = false;  // channel 2j turns with 2j + 1; otherwise j with j + half of those that turn

  std::int64_t turning(
      std::int64_t head_dim) const {  // channels that turn; even. Proportional: some of them by nothing
    if (type == RopeType::kProportional) return head_dim;
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * partial);
  }
  bool by_length() const { return type == RopeType::kLongRope || type == RopeType::kDynamic; }
  bool is_long() const { return by_length() && run_length > original_max_position; }
};

// Queries at position i, after RoPE, times 1 + beta log(1 + floor((i + first) / length)).
struct QueryScale {
  double beta = 0.0, length = 0.0;  // length 0: the family has none
  std::int64_t first = 0;
  bool without_rope = false;  // only in layers without RoPE
};

enum class LayerRope { kGlobal, kLocal, kNone };  // positions of a layer: `rope`, `local_rope`, none at all
enum class Activation { kSilu, kGeluTanh };

// Layers whose MLP is a choice of experts.
struct ExpertConfig {
  std::int64_t count = 0;      // of one layer; 0: the model has none
  std::int64_t per_token = 0;  // chosen for each token
  std::int64_t intermediate = 0;
  std::int64_t groups = 1, groups_chosen = 1;  // of equal size, in order: experts come from the best groups
  std::int64_t group_judges = 2;               // a group is as good as the sum of its best ones, this many
  std::int64_t shared = 0;                     // intermediate size of the expert that every token gets; 0: none
  bool normalized = true;                      // the weights of the chosen ones are divided by their sum
  double least_sum = 0.0;                      // which counts as this much at least
  double scaling = 1.0;                        // then multiplies the weights
  double gate_gain = 1.702, gate_limit = 7.0;  // of the clamped gate (gpt-oss)
  std::vector<bool> layers;                    // [layers]; empty: none
};

// Layers that keep a state of fixed size instead of keys and values: gated delta nets (model/gated_delta_net.h).
struct LinearAttention {
  std::int64_t key_heads = 0, value_heads = 0;  // each query and key serves value_heads / key_heads value heads
  std::int64_t key_dim = 0, value_dim = 0;      // of one head
  std::int64_t kernel = 0;                      // tokens that the short convolution sees, the newest among them
  std::vector<bool> layers;                     // [layers]; empty: every layer has attention

  std::int64_t keys() const { return key_heads * key_dim; }
  std::int64_t values() const { return value_heads * value_dim; }
  std::int64_t channels() const { return 2 * keys() + values(); }  // of the convolution
};

// Sliding layers whose heads are of another size or number than those of the layers that see all (Gemma 4). Their keys
// and values are as short as the window: they stay in the type of the run, beside the cache that is quantized
// (model/local_attention.h).
struct LocalAttention {
  std::int64_t kv_heads = 0, head_dim = 0;
  std::vector<bool> layers;  // [layers]; empty: heads are alike in all layers
};

// Latent attention (MLA; DeepSeek-V2, arXiv:2405.04434, section 2.1): a token caches one vector, the normed latent and
// the rotated channels that all heads share. With W_UK multiplied into the queries it is attention with one KV head,
// whose keys are [latent, rotated] and whose values are [latent, 0]: kv_heads is 1, and head_dim the sum of both
// widths.
struct LatentAttention {
  std::int64_t rank = 0;        // of the latent; 0: the model has no latent attention
  std::int64_t rotated = 0;     // channels of the key that turn, behind the latent
  std::int64_t query_rank = 0;  // of the queries' own latent; 0: one projection
  std::int64_t nope_dim = 0;    // channels of a head's query that meet the latent
  std::int64_t value_dim = 0;   // of a head, before W_O

  std::int64_t query_dim() const { return nope_dim + rotated; }
};

// The last layers of a model may have no keys and values of their own: they read those of an earlier layer (Gemma 4
// E2B, E4B).
struct SharedCaches {
  std::vector<std::int64_t> source;  // [layers] whose keys and values a layer reads, its own number where they are its
                                     // own; empty: so everywhere
  std::int64_t intermediate = 0;     // of the MLP of layers that read another's; 0: as in other layers
};

struct ModelConfig {
  std::string architecture;  // "Qwen3ForCausalLM"
  std::string model_type;    // "qwen3"
  std::int64_t layers = 0, hidden = 0, intermediate = 0, vocabulary = 0;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t max_position = 0;
  double rms_eps = 1e-6;
  Activation activation = Activation::kSilu;
  bool tie_embeddings = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;          // RMSNorm over each head of q and k, before RoPE
  bool norm_after_rope = false;  // that norm comes after RoPE
  bool unit_v_norm = false;      // each head of v over the root of its mean square
  bool keys_as_values = false;   // layers that see all have no projection of v: it is that of k, before norm and RoPE
  bool unit_qk_norm = false;     // q and k over the root of their mean square, after RoPE, in layers that have it
  bool output_gate = false;      // attention's outputs are multiplied by the sigmoid of a second half of q's projection
  RopeConfig rope, local_rope;
  std::vector<LayerRope> layer_rope;         // [layers]; empty: kGlobal everywhere
  std::vector<std::int64_t> sliding_window;  // [layers]; 0: full attention
  std::vector<std::int64_t> chunk;           // [layers]; tokens that are cut off from those before; empty or 0: none
  QueryScale query_scale;
  double attention_scale = 0.0;  // of q k^T in the softmax; 0: head_dim^-1/2
  double logit_soft_cap = 0.0;   // attention logits become cap tanh(x / cap); 0: none
  double final_soft_cap = 0.0;   // the same of the model's logits
  bool sink_logits = false;      // one logit for each query head joins the denominator of the softmax
  double embedding_scale = 1.0;  // rounded to the activation dtype, then multiplies embeddings
  double residual_scale = 1.0;   // multiplies what each branch adds to the residual stream
  double logit_scale = 0.0;      // multiplies the model's logits; 0: the family has no such number
  ExpertConfig experts;
  LinearAttention linear;
  LocalAttention local;
  SharedCaches shared;
  std::int64_t layer_input = 0;  // width of the embedding that each layer has of a token; 0: layers have none
  LatentAttention latent;
  WeightConfig weights;         // how they are quantized
  bool text_tower = false;      // the text model inside a multimodal wrapper
  std::int64_t bos_token = -1;  // -1: none
  std::vector<std::int64_t> eos_tokens;
  std::string torch_dtype;  // as written: "bfloat16"

  // Tokens that a query of the layer sees at most: its window, or its chunk; 0: all.
  std::int64_t span(std::int64_t layer) const {
    const std::int64_t tokens = chunk.empty() ? 0 : chunk.at(static_cast<std::size_t>(layer));
    if (tokens > 0) return tokens;
    return sliding_window.empty() ? 0 : sliding_window.at(static_cast<std::size_t>(layer));
  }

  std::int64_t gqa_group() const { return query_heads / kv_heads; }  // query heads of one KV head

  bool is_latent() const { return latent.rank > 0; }
  std::int64_t rotary_width() const { return is_latent() ? latent.rotated : head_dim; }  // that RoPE is made for

  bool is_local(std::int64_t layer) const {  // of LocalAttention::layers
    return !local.layers.empty() && local.layers.at(static_cast<std::size_t>(layer));
  }
  std::int64_t head_dim_of(std::int64_t layer) const { return is_local(layer) ? local.head_dim : head_dim; }
  std::int64_t kv_heads_of(std::int64_t layer) const { return is_local(layer) ? local.kv_heads : kv_heads; }
  std::int64_t local_head_dim() const { return local.layers.empty() ? head_dim : local.head_dim; }  // of local_rope
  bool projects_values(std::int64_t layer) const { return !keys_as_values || span(layer) > 0; }

  bool reads_another(std::int64_t layer) const {
    return !shared.source.empty() && shared.source.at(static_cast<std::size_t>(layer)) != layer;
  }
  std::vector<std::int64_t> shared_layers() const;          // whose keys and values others read, ascending
  std::int64_t intermediate_of(std::int64_t layer) const {  // of the MLP
    return reads_another(layer) && shared.intermediate > 0 ? shared.intermediate : intermediate;
  }
  // Of a token's row between two layers: the hidden state, then what CarriedRows has (model/carried_rows.h).
  std::int64_t state_width() const;

  bool is_linear(std::int64_t layer) const {
    return !linear.layers.empty() && linear.layers.at(static_cast<std::size_t>(layer));
  }
  // Layers that hold a KV cache which can be quantized. Whoever looks at keys and values counts these alone; numbers
  // are those of the model.
  bool holds_kv(std::int64_t layer) const { return !is_linear(layer) && !is_local(layer) && !reads_another(layer); }
  std::int64_t kv_layers() const;                   // how many
  std::int64_t kv_layer(std::int64_t place) const;  // the number of the layer in this place among them
  std::int64_t kv_place(std::int64_t layer) const;  // the place of a layer, or of the next one that holds a cache
};

// Defaults of absent keys are those of transformers 5 for the family. Parses and validates; `where` names the file.
// InputError for a missing key, a contradiction (query heads not a multiple of KV heads), or an architecture that is
// not supported (the message lists those that are).
ModelConfig parse_model_config(const Json& config, const std::string& where);

// InputError for a model with latent attention, of which `what` ("oscar-verify") is not capable.
void refuse_latent(const ModelConfig& config, const std::string& what);

// The same for a model whose rows between layers hold more than the hidden state (ModelConfig::state_width()).
void refuse_carried_rows(const ModelConfig& config, const std::string& what);

// "LlamaForCausalLM, MistralForCausalLM, ..."
std::string supported_architectures();

}  // namespace oscar
