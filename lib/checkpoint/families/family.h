// One supported architecture: its config.json defaults, layer variants and tensor names. Each family is one file beside
// this one and ends in a FamilyRow; CMake lists the rows (cmake/OscarFamilies.cmake).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/json.h"
#include "checkpoint/model_config.h"

namespace oscar {

// x^ = x / sqrt(mean(x^2) + eps) in FP32 (kCentered: from x - mean(x)), then:
enum class NormKind {
  kRounded,   // round(x^) w: rounded to the activation dtype before the weight
  kWide,      // round(x^ w): the weight in FP32
  kOnePlus,   // round(x^ (1 + w)): zero-centered weights, in FP32
  kCentered,  // round(x^ w): LayerNorm without a bias
};

// How a token's experts and their weights are chosen:
// - kSoftmaxFirst: softmax in FP32 over all, then the largest;
// - kLargestFirst: the largest logits, then their softmax in the activation dtype;
// - kSigmoid: the largest of the logits' sigmoids in FP32;
// - kLargestSigmoids: the largest logits, then their sigmoids in FP32.
enum class RouterKind { kSoftmaxFirst, kLargestFirst, kSigmoid, kLargestSigmoids };

// act(g) u; or clamped, with g <- min(g, limit), u <- clamp(u, limit): (u + 1) g sigmoid(gain g).
enum class ExpertGate { kPlain, kClamped };

// The layout of expert gate and up weights in one tensor for all experts.
enum class FusedExperts {
  kGateFirst,    // [E, 2I, hidden], gate rows first; down [E, hidden, I]
  kInterleaved,  // [E, hidden, 2I], columns gate, up, gate, ...; down [E, I, hidden]
  kTransposed,   // [E, hidden, 2I], gate columns first; down [E, I, hidden]
};

// The variable parts of a layer. The names below say where norms are; absent norms have empty names.
struct Pieces {
  NormKind norm = NormKind::kRounded;
  RouterKind router = RouterKind::kSoftmaxFirst;
  bool rounded_weights = true;  // except for kLargestFirst: round expert weights to the activation dtype
  bool wide_router = false;     // compute router logits in FP32
  bool weighed_inputs = false;  // expert weights multiply the experts' inputs, not their outputs
  ExpertGate gate = ExpertGate::kPlain;
  FusedExperts fused = FusedExperts::kGateFirst;
  bool parallel = false;  // the MLP reads attention's input, and both outputs are added together
};

// Tensor names as saved by transformers. Layer names follow `layer_prefix` + layer index + "."; an empty name means
// that the architecture has no such tensor.
struct Family {
  Pieces pieces;

  std::string embedding = "model.embed_tokens.weight";
  std::string final_norm = "model.norm.weight";
  std::string head = "lm_head.weight";
  std::string layer_prefix = "model.layers.";

  std::string input_norm = "input_layernorm.weight";         // before attention
  std::string attention_out_norm;                            // on attention's output, before the residual addition
  std::string mlp_norm = "post_attention_layernorm.weight";  // before the MLP
  std::string mlp_out_norm;                                  // on the MLP's output
  std::string layer_scalar;                                  // [1], multiplies the layer's output
  // Token embeddings of each layer. For all layers together: a table, a projection of the model's embedding and its
  // norm. Per layer: the gate, the projection and its norm.
  std::string layer_embedding, layer_projection, layer_projection_norm;
  std::string input_gate, input_projection, input_out_norm;
  std::string q = "self_attn.q_proj.weight", q_bias;
  std::string k = "self_attn.k_proj.weight", k_bias;
  std::string v = "self_attn.v_proj.weight", v_bias;
  std::string qkv;  // instead of q, k and v: one tensor, rows in this order
  std::string o = "self_attn.o_proj.weight", o_bias;
  std::string q_norm, k_norm;
  bool whole_qk_norm = false;  // norms the full projection, not each head
  std::string sinks;
  // Latent attention has these instead of k and v. If queries have a latent, q is their second projection.
  std::string q_a, q_a_bias, q_a_norm;
  std::string kv_a, kv_a_bias, kv_a_norm, kv_b;
  // Linear-attention layers have these instead: q, k and v in one tensor, output gate, step sizes (beta), decays. Or
  // the first two and the last two are each in one tensor, grouped by key head.
  std::string linear_qkv, linear_z, linear_beta, linear_decay;
  std::string linear_qkvz, linear_beta_decay;
  std::string linear_conv, linear_decay_bias, linear_log_rate, linear_norm, linear_out;
  std::string gate = "mlp.gate_proj.weight", gate_bias;
  std::string up = "mlp.up_proj.weight", up_bias;
  std::string gate_up;  // instead of gate and up: one tensor, the gate's rows first
  std::string down = "mlp.down_proj.weight", down_bias;

  // Layers with experts have these instead of gate, up and down. "{}" is replaced by the expert's number.
  std::string router, router_bias;
  std::string experts_router;             // the router's name beside a tensor for all experts; empty: the same name
  std::string router_correction;          // [E], added to scores when experts are chosen
  bool correction_row = false;            // stored as [1, E]
  std::string experts_router_correction;  // its name beside a tensor for all experts; empty: the same name
  std::string shared_gate, shared_up, shared_down;  // shared expert
  std::string shared_weight;                        // [1, hidden]: the sigmoid of its product with x weights the shared
                                                    // expert
  // Experts beside an MLP that uses the shared expert's names, with separate norms. Router and experts then read the
  // residual stream. The router's input is the stream divided by its root mean square, times router_scale hidden^-1/2.
  std::string dense_out_norm, experts_norm, experts_out_norm;
  std::string router_scale, expert_scale;           // [hidden]; [E], multiplies the expert weights
  std::string expert_gate, expert_up, expert_down;  // one tensor per expert; empty: never saved this way
  std::string experts_gate_up, experts_down;        // one tensor for all experts
  std::string experts_gate_up_bias, experts_down_bias;

  std::string layer_tensor(std::int64_t layer, const std::string& name) const;

  // Adds bias names in their usual form: the biases that the config enables, or some of them.
  void add_biases(const ModelConfig& config);
  void add_qkv_bias();
  void add_output_bias();
  // RMSNorm of q and k, and fused projections, under their usual names.
  void add_qk_norm();
  void fuse_gate_up();
  // Router and experts under the names of Qwen, which most families share, or of Mixtral; the shared expert.
  void add_experts();
  void add_mixtral_experts();
  void add_shared_expert();
  // All three with corrected sigmoid scores, in FP32.
  void add_sigmoid_experts();
};

// Llama's layers, with the biases that the config enables.
Family llama_layers(const ModelConfig& config);

// Which layers use a sliding window:
// - kNone: none;
// - kEveryLayer: all, unless layer_types says otherwise;
// - kByLayer: under use_sliding_window, by layer_types or from max_window_layers on (Qwen2, Qwen3);
// - kSwitched: all, under use_sliding_window (Qwen3-MoE);
// - kPattern: by layer_types, or all except every `pattern`th.
enum class SlidingLayers { kNone, kEveryLayer, kByLayer, kSwitched, kPattern };

// Defaults of transformers 5 for absent keys of config.json, and facts that its layers fix in code.
struct ConfigDefaults {
  std::int64_t head_dim = 0;      // 0: hidden / query heads
  std::int64_t query_heads = 0;   // 0: the key is required
  std::int64_t kv_heads = 0;      // 0: as many as query heads
  std::int64_t vocabulary = 0;    // 0: the key is required
  std::int64_t intermediate = 0;  // 0: the key is required
  std::int64_t max_position = 2048;
  std::int64_t bos = -1;                           // -1: none
  std::array<std::int64_t, 3> eos = {-1, -1, -1};  // the first ones
  double rms_eps = 1e-6;
  const char* eps_key = "rms_norm_eps";
  double rope_theta = 10000.0;
  bool tied = false;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool qkv_bias = false;        // always, independent of attention_bias
  bool attention_bias = false;  // default of the key, if it is read
  bool reads_attention_bias = false, reads_mlp_bias = false;
  bool output_bias = true;    // attention_bias also applies to o
  bool partial_rope = false;  // partial_rotary_factor is read
  double partial_rotary = 1.0;
  bool own_rope = false;  // rope parameters have a special form; read_config reads them
  bool qk_norm = false;
  SlidingLayers sliding = SlidingLayers::kNone;
  std::int64_t window = 4096;  // default of sliding_window; 0: none
  std::int64_t pattern = 2;
};

struct FamilyRow {
  const char* architecture;  // "Qwen3ForCausalLM"
  const char* model_type;    // "qwen3"
  // Multimodal architecture whose text_config is this family; nullptr: none. If families share one, model_type in
  // text_config selects the family.
  const char* wrapper = nullptr;
  const char* wrapper_type = nullptr;
  bool wrapper_ties = false;         // its default of tie_word_embeddings
  bool named_inside = false;         // for a shared wrapper: only if text_config names this model_type
  const char* other_type = nullptr;  // a second model_type of the same model ("kimi_k2"); nullptr: none
  ConfigDefaults defaults;
  // Reads the family's special keys after all others; nullptr: none.
  void (*read_config)(const Json& config, const std::string& where, ModelConfig* out) = nullptr;
  Family (*family)(const ModelConfig& config);
};

// In the order of their file names.
std::span<const FamilyRow* const> family_rows();
// The family named by config.architecture, which parse_model_config() sets.
Family family_of(const ModelConfig& config);

class Checkpoint;
// The same with the checkpoint's tensor names: a wrapper puts its text model under another prefix.
Family family_of(const Checkpoint& checkpoint);

// The text part of config.json. For a multimodal wrapper: text_config plus the outer keys that it lacks. Otherwise
// `config`.
Json text_config(const Json& config, const FamilyRow& row);

}  // namespace oscar
