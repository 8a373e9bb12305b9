// config.json as typed values. Accepts the spellings of transformers v4 (rope_theta, rope_scaling) and v5
// (rope_parameters).
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
  double attention_factor = 1.0;  // yarn, longrope: multiplies cos and sin; the parser sets absent values to their
                                  // defaults
  double temperature = 1.0;       // yarn with mscale_all_dim: its square multiplies the softmax scale (DeepSeek)
  bool truncate = true;           // yarn: round the correction range to whole dimensions
  double partial = 1.0;           // share of a head's channels that RoPE rotates, the first ones; proportional: share
                                  // of its pairs
  std::vector<double> short_factor, long_factor;  // longrope: [turning / 2], for wavelengths
  // longrope, dynamic: tokens of the run's longest sequence, which select the frequencies; 0: none is long. Set by
  // Checkpoint::set_run_length(), not by config.json.
  std::int64_t run_length = 0;
  bool interleaved = false;  // rotate channel 2j with 2j + 1; otherwise j with j + turning / 2

  std::int64_t turning(
      std::int64_t head_dim) const {  // number of channels under RoPE; even. Proportional: some have angle 0
    if (type == RopeType::kProportional) return head_dim;
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * partial);
  }
  bool by_length() const { return type == RopeType::kLongRope || type == RopeType::kDynamic; }
  bool is_long() const { return by_length() && run_length > original_max_position; }
};

// Multiplies queries at position i, after RoPE, by 1 + beta log(1 + floor((i + first) / length)).
struct QueryScale {
  double beta = 0.0, length = 0.0;  // length 0: the family has none
  std::int64_t first = 0;
  bool without_rope = false;  // only in layers without RoPE
};

enum class LayerRope { kGlobal, kLocal, kNone };  // RoPE of a layer: `rope`, `local_rope` or none
enum class Activation { kSilu, kGeluTanh };

// Layers whose MLP consists of experts.
struct ExpertConfig {
  std::int64_t count = 0;      // per layer; 0: the model has none
  std::int64_t per_token = 0;  // chosen for each token
  std::int64_t intermediate = 0;
  std::int64_t groups = 1, groups_chosen = 1;  // groups of equal size, in order; experts come from the best groups
  std::int64_t best_of_group = 2;              // a group's score is the sum of this many of its best experts
  std::int64_t shared = 0;                     // intermediate size of the shared expert; 0: none
  bool normalized = true;                      // divide the weights of the chosen experts by their sum
  double least_sum = 0.0;                      // lower limit of that sum
  double scaling = 1.0;                        // multiplies the weights afterward
  double gate_gain = 1.702, gate_limit = 7.0;  // for the clamped gate (gpt-oss)
  std::vector<bool> layers;                    // [layers]; empty: none
};

// Layers with a fixed-size state instead of keys and values: gated delta nets (model/gated_delta_net.h).
struct LinearAttention {
  std::int64_t key_heads = 0, value_heads = 0;  // each query and key serves value_heads / key_heads value heads
  std::int64_t key_dim = 0, value_dim = 0;      // per head
  std::int64_t kernel = 0;                      // tokens that the short convolution covers, including the newest
  std::vector<bool> layers;                     // [layers]; empty: every layer has attention

  std::int64_t keys() const { return key_heads * key_dim; }
  std::int64_t values() const { return value_heads * value_dim; }
  std::int64_t channels() const { return 2 * keys() + values(); }  // convolution channels
};

// Sliding-window layers whose heads differ in size or number from the global layers (Gemma 4). Their keys and values
// cover only the window. They stay in the run's dtype, outside the quantized cache (model/local_attention.h).
struct LocalAttention {
  std::int64_t kv_heads = 0, head_dim = 0;
  std::vector<bool> layers;  // [layers]; empty: all layers have equal heads
};

// Latent attention (MLA; DeepSeek-V2, arXiv:2405.04434, section 2.1). A token caches its normed latent and the RoPE
// channels that all heads share. With W_UK absorbed into the queries this is attention with one KV head, whose key and
// value are the latent (kv_heads is 1, head_dim the latent's size); the RoPE channels only add to the logits.
struct LatentAttention {
  std::int64_t rope_dim = 0;    // key channels with RoPE, beside the latent; 0: no latent attention
  std::int64_t query_rank = 0;  // latent size of the queries; 0: one projection
  std::int64_t nope_dim = 0;    // query channels per head that multiply the latent
  std::int64_t value_dim = 0;   // per head, before W_O

  std::int64_t query_dim() const { return nope_dim + rope_dim; }
};

// The last layers of a model may have no keys and values of their own and share an earlier layer's (Gemma 4 E2B, E4B).
struct SharedCaches {
  std::vector<std::int64_t> source;  // [layers] the layer whose keys and values each layer reads; its own number if it
                                     // has its own; empty: all have their own
  std::int64_t intermediate = 0;     // MLP size of layers that share another's cache; 0: as in other layers
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
  bool one_table = false;  // the config, or that of the wrapper around it, ties embedding and head
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;          // RMSNorm over each head of q and k, before RoPE
  bool norm_after_rope = false;  // the q and k norm comes after RoPE
  bool unit_v_norm = false;      // divide each head of v by its root mean square
  bool keys_as_values = false;   // global layers have no v projection; v is the projection of k before norm and RoPE
  bool unit_qk_norm = false;     // divide q and k by their root mean square, after RoPE, in layers with RoPE
  bool output_gate = false;      // the sigmoid of a second half of q's projection multiplies attention's output
  RopeConfig rope, local_rope;
  std::vector<LayerRope> layer_rope;         // [layers]; empty: kGlobal everywhere
  std::vector<std::int64_t> sliding_window;  // [layers]; 0: full attention
  std::vector<std::int64_t> chunk;           // [layers]; chunk length; earlier tokens are not visible; empty or 0: none
  QueryScale query_scale;
  double attention_scale = 0.0;  // factor of q k^T before the softmax; 0: head_dim^-1/2
  double logit_soft_cap = 0.0;   // attention logits become cap tanh(x / cap); 0: none
  double final_soft_cap = 0.0;   // the same for the model's logits
  bool sink_logits = false;      // one logit per query head is added to the softmax denominator
  double embedding_scale = 1.0;  // rounded to the activation dtype, then multiplies embeddings
  double residual_scale = 1.0;   // multiplies each branch's output before the residual addition
  double logit_scale = 0.0;      // multiplies the model's logits; 0: the family has none
  ExpertConfig experts;
  LinearAttention linear;
  LocalAttention local;
  SharedCaches shared;
  LatentAttention latent;
  std::int64_t layer_input = 0;  // width of each layer's token embedding; 0: layers have none
  WeightConfig weights;          // how the weights are quantized
  bool text_tower = false;       // the text model inside a multimodal wrapper
  std::int64_t bos_token = -1;   // -1: none
  std::vector<std::int64_t> eos_tokens;
  std::string torch_dtype;  // as written: "bfloat16"

  // The most tokens that a query of the layer sees: its window or chunk; 0: all.
  std::int64_t span(std::int64_t layer) const {
    const std::int64_t tokens = chunk.empty() ? 0 : chunk.at(static_cast<std::size_t>(layer));
    if (tokens > 0) return tokens;
    return sliding_window.empty() ? 0 : sliding_window.at(static_cast<std::size_t>(layer));
  }

  std::int64_t gqa_group() const { return query_heads / kv_heads; }  // query heads per KV head

  bool is_latent() const { return latent.rope_dim > 0; }
  std::int64_t rotary_width() const { return is_latent() ? latent.rope_dim : head_dim; }  // head width that RoPE uses
  // Numbers that a token caches in a layer: those that methods code, and all.
  std::int64_t coded_width() const { return (is_latent() ? 1 : 2) * kv_heads * head_dim; }
  std::int64_t cached_width() const { return coded_width() + latent.rope_dim; }

  bool is_local(std::int64_t layer) const {  // listed in LocalAttention::layers
    return !local.layers.empty() && local.layers.at(static_cast<std::size_t>(layer));
  }
  std::int64_t head_dim_of(std::int64_t layer) const { return is_local(layer) ? local.head_dim : head_dim; }
  std::int64_t kv_heads_of(std::int64_t layer) const { return is_local(layer) ? local.kv_heads : kv_heads; }
  std::int64_t local_head_dim() const { return local.layers.empty() ? head_dim : local.head_dim; }  // for local_rope
  bool projects_values(std::int64_t layer) const { return !keys_as_values || span(layer) > 0; }

  bool reads_another(std::int64_t layer) const {
    return !shared.source.empty() && shared.source.at(static_cast<std::size_t>(layer)) != layer;
  }
  std::vector<std::int64_t> shared_layers() const;          // layers whose keys and values others read, ascending
  std::int64_t intermediate_of(std::int64_t layer) const {  // MLP size
    return reads_another(layer) && shared.intermediate > 0 ? shared.intermediate : intermediate;
  }
  // Width of a token's row between two layers: the hidden state, then CarriedRows (model/carried_rows.h).
  std::int64_t state_width() const;

  bool is_linear(std::int64_t layer) const {
    return !linear.layers.empty() && linear.layers.at(static_cast<std::size_t>(layer));
  }
  // Whether the layer has a KV cache that can be quantized. Code that handles keys and values counts only these layers;
  // layer numbers are the model's.
  bool holds_kv(std::int64_t layer) const { return !is_linear(layer) && !is_local(layer) && !reads_another(layer); }
  std::int64_t kv_layers() const;                   // how many there are
  std::int64_t kv_layer(std::int64_t place) const;  // the number of the layer at this index
  std::int64_t kv_place(std::int64_t layer) const;  // the index of a layer, or of the next layer with a cache
};

// Parses and validates a config.json; `where` names the file. Absent keys have the defaults of transformers 5 for the
// family. InputError for a missing key, a contradiction (query heads not a multiple of KV heads), or an unsupported
// architecture. The message lists the supported ones.
ModelConfig parse_model_config(const Json& config, const std::string& where);

// InputError for a model whose rows between layers contain more than the hidden state (ModelConfig::state_width()).
void refuse_carried_rows(const ModelConfig& config, const std::string& what);

// "LlamaForCausalLM, MistralForCausalLM, ..."
std::string supported_architectures();

}  // namespace oscar
