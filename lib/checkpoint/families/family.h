// One supported architecture: what config.json leaves unsaid, the pieces of its layers, and the names of its tensors.
// Each family is one file beside this one, which ends in a FamilyRow; CMake lists the rows (cmake/OscarFamilies.cmake).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/json.h"
#include "checkpoint/model_config.h"

namespace oscar {

// x^ = x / sqrt(mean(x^2) + eps) in FP32 (kCentered: of x - mean(x)), then:
enum class NormKind {
  kRounded,   // round(x^) w: rounded to the activation dtype before the weight
  kWide,      // round(x^ w): the weight in FP32
  kOnePlus,   // round(x^ (1 + w)): zero-centered weights, in FP32
  kCentered,  // round(x^ w): LayerNorm without a bias
};

// Which experts a token gets, and with which weights: softmax in FP32 over all and then the largest, the largest
// logits and then softmax over those in the activation dtype, the largest of each logit's sigmoid in FP32, or the
// largest logits and then their sigmoids in FP32.
enum class RouterKind { kSoftmaxFirst, kLargestFirst, kSigmoid, kLargestSigmoids };

// act(g) u; or with clamps g <- min(g, limit), u <- clamp(u, limit): (u + 1) g sigmoid(gain g).
enum class ExpertGate { kPlain, kClamped };

// How an expert's gate and up weights lie in one tensor of all experts.
enum class FusedExperts {
  kGateFirst,    // [E, 2I, hidden], rows of the gate first; down [E, hidden, I]
  kInterleaved,  // [E, hidden, 2I], columns gate, up, gate, ...; down [E, I, hidden]
  kTransposed,   // [E, hidden, 2I], columns of the gate first; down [E, I, hidden]
};

// The exchangeable pieces of a layer. Where norms stand is told by the names below: those a family has not are empty.
struct Pieces {
  NormKind norm = NormKind::kRounded;
  RouterKind router = RouterKind::kSoftmaxFirst;
  bool rounded_weights = true;  // not kLargestFirst: weights of experts are rounded to the activation dtype
  bool wide_router = false;     // logits of the router are computed in FP32
  bool weighed_inputs = false;  // the weights of experts multiply what they read, not what they give
  ExpertGate gate = ExpertGate::kPlain;
  FusedExperts fused = FusedExperts::kGateFirst;
  bool parallel = false;  // the MLP reads what attention reads, and both are added together
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
  std::string attention_out_norm;                            // of what attention adds to the residual stream
  std::string mlp_norm = "post_attention_layernorm.weight";  // before the MLP
  std::string mlp_out_norm;                                  // of what the MLP adds
  std::string layer_scalar;                                  // [1], multiplies what the layer gives
  // Embeddings that each layer has of a token: a table and a projection of the model's own embedding, both of all
  // layers one after another; and of each layer the gate, the projection and its norm.
  std::string layer_embedding, layer_projection, layer_projection_norm;
  std::string input_gate, input_projection, input_out_norm;
  std::string q = "self_attn.q_proj.weight", q_bias;
  std::string k = "self_attn.k_proj.weight", k_bias;
  std::string v = "self_attn.v_proj.weight", v_bias;
  std::string qkv;  // instead of q, k and v: one tensor, rows in this order
  std::string o = "self_attn.o_proj.weight", o_bias;
  std::string q_norm, k_norm;
  bool whole_qk_norm = false;  // over the whole projection, not over each head
  std::string sinks;
  // Latent attention has these instead of k and v, and with a latent of the queries q is its second projection.
  std::string q_a, q_a_bias, q_a_norm;
  std::string kv_a, kv_a_bias, kv_a_norm, kv_b;
  // Layers of linear attention have these instead: q, k and v in one tensor, gate of the outputs, steps (beta), decays;
  // or the first two and the last two in one tensor each, the rows of each key head together.
  std::string linear_qkv, linear_z, linear_beta, linear_decay;
  std::string linear_qkvz, linear_beta_decay;
  std::string linear_conv, linear_decay_bias, linear_log_rate, linear_norm, linear_out;
  std::string gate = "mlp.gate_proj.weight", gate_bias;
  std::string up = "mlp.up_proj.weight", up_bias;
  std::string gate_up;  // instead of gate and up: one tensor, the gate's rows first
  std::string down = "mlp.down_proj.weight", down_bias;

  // Layers with experts have these instead of gate, up and down. "{}" stands for the expert's number.
  std::string router, router_bias;
  std::string experts_router;             // the router beside the one tensor for all experts; empty: the same name
  std::string router_correction;          // [E], added to scores where experts are chosen
  bool correction_row = false;            // stored as [1, E]
  std::string experts_router_correction;  // beside the one tensor for all experts; empty: the same name
  std::string shared_gate, shared_up, shared_down;  // of the expert that every token gets
  std::string shared_weight;                        // [1, hidden]: the sigmoid of its product with x weighs that expert
  // Experts beside an MLP (which has the names of the shared expert), each with norms of its own; router and experts
  // then read the residual stream: the router over the root of its mean square times router_scale hidden^-1/2.
  std::string dense_out_norm, experts_norm, experts_out_norm;
  std::string router_scale, expert_scale;           // [hidden]; [E], multiplies the weights of experts
  std::string expert_gate, expert_up, expert_down;  // a tensor for each expert; empty: never saved so
  std::string experts_gate_up, experts_down;        // one tensor for all experts
  std::string experts_gate_up_bias, experts_down_bias;

  std::string layer_tensor(std::int64_t layer, const std::string& name) const;

  // Biases under their usual names: those that the config switches on, or some of them.
  void add_biases(const ModelConfig& config);
  void add_qkv_bias();
  void add_output_bias();
  // RMSNorm of q and k, and the fused projections, under their usual names.
  void add_qk_norm();
  void fuse_gate_up();
  // Router and experts under the names of Qwen, which most families share, or of Mixtral; the expert for every token.
  void add_experts();
  void add_mixtral_experts();
  void add_shared_expert();
};

// Which layers slide: none; all, unless layer_types says otherwise; those of layer_types or else from
// max_window_layers on, under use_sliding_window (Qwen2, Qwen3); all under use_sliding_window (Qwen3-MoE); those of
// layer_types or else all but each `pattern`th.
enum class SlidingLayers { kNone, kEveryLayer, kByLayer, kSwitched, kPattern };

// What transformers 5 does where config.json is silent, and what its layers fix in code.
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
  bool qkv_bias = false;        // always, whatever attention_bias says
  bool attention_bias = false;  // of an absent key, where it is read
  bool reads_attention_bias = false, reads_mlp_bias = false;
  bool output_bias = true;    // attention_bias is one of o as well
  bool partial_rope = false;  // partial_rotary_factor is read
  double partial_rotary = 1.0;
  bool own_rope = false;  // rope parameters of a form of its own; read_config reads them
  bool qk_norm = false;
  SlidingLayers sliding = SlidingLayers::kNone;
  std::int64_t window = 4096;  // of an absent sliding_window; 0: none
  std::int64_t pattern = 2;
};

struct FamilyRow {
  const char* architecture;  // "Qwen3ForCausalLM"
  const char* model_type;    // "qwen3"
  // Multimodal architecture whose text_config is this family; nullptr: none. Families may share one: then model_type in
  // text_config tells them apart.
  const char* wrapper = nullptr;
  const char* wrapper_type = nullptr;
  bool named_inside = false;         // of a shared wrapper: only where text_config names this model_type
  const char* other_type = nullptr;  // a second model_type of the same model ("kimi_k2"); nullptr: none
  ConfigDefaults defaults;
  // Keys of its own, after all others are read; nullptr: none.
  void (*read_config)(const Json& config, const std::string& where, ModelConfig* out) = nullptr;
  Family (*family)(const ModelConfig& config);
};

// In the order of their files' names.
std::span<const FamilyRow* const> family_rows();
// By config.architecture, which parse_model_config() filled in.
Family family_of(const ModelConfig& config);

class Checkpoint;
// The same with the names that the checkpoint has: a wrapper puts its text model below another prefix.
Family family_of(const Checkpoint& checkpoint);

// The text part of config.json: of a multimodal wrapper text_config with the outer keys that it lacks, else `config`.
Json text_config(const Json& config, const FamilyRow& row);

}  // namespace oscar
