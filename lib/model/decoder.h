// The decoder-only transformer of all supported families. It has one forward path, built from the parts that each
// family selects in checkpoint/families (layer.h, experts.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/attention.h"

namespace oscar {

const char* dtype_name(at::ScalarType dtype);  // "float32", "bfloat16"

struct DecoderOptions {
  at::ScalarType dtype = at::kFloat;  // of weights and activations
  at::Device device = at::kCPU;
  bool stream_layers = false;  // load layers on demand; at most one is resident, or two on a GPU
  bool prefetch = false;       // with stream_layers on a GPU: copy the next layer during computation
  bool descending = false;     // with prefetch: layers run from last to first
  // Type of the weights of attention's projections, dense MLPs and the head. Their products take inputs in this type,
  // and their results return to `dtype`; the MLP's activation stays in it. Not given: dtype.
  std::optional<at::ScalarType> products;

  at::ScalarType product_dtype() const { return products.value_or(dtype); }
  bool narrow_products() const { return product_dtype() != dtype; }
  // "float32", "bfloat16", or "mixed": float32 with products in bfloat16.
  const char* dtype_name() const;
  // Whether activations, or only the inputs of products, are rounded to less than FP32.
  bool rounds() const { return product_dtype() != at::kFloat; }
};

// Weights of one layer; absent tensors are undefined. Linear weights are [out, in]. I: intermediate size.
struct LayerWeights {
  at::Tensor input_norm, attention_out_norm, mlp_norm, mlp_out_norm;  // [hidden]
  at::Tensor layer_scalar;                                            // [1]
  // For the layer's own token embedding: [P, hidden], [hidden, P], [hidden].
  at::Tensor input_gate, input_projection, input_out_norm;
  // [Hq*d, hidden], [Hkv*d, hidden] x2, [hidden, Hq*d]; v is undefined if keys serve as values
  at::Tensor q, k, v, o;
  at::Tensor q_bias, k_bias, v_bias, o_bias;
  at::Tensor q_norm, k_norm;  // [d]; if they norm the full projection: [Hq*d], [Hkv*d]
  at::Tensor sinks;           // [Hq]
  // Latent attention instead of k and v. r: latent rank, R: RoPE channels, n: nope_dim, rq: query_rank.
  at::Tensor q_a, q_a_bias, q_a_norm;           // [rq, hidden], [rq] x2; then q [Hq (n+R), rq], o [hidden, Hq v]
  at::Tensor kv_a, kv_a_bias, kv_a_norm, kv_b;  // [r+R, hidden], [r+R], [r], [Hq (n+v), r]: W_UK, W_UV of each head
  at::Tensor output_gate, output_gate_bias;     // [Hq*d, hidden], [Hq*d]
  // A gated delta net instead of attention. C: convolution channels, Hv value heads, K tokens.
  at::Tensor linear_qkv, linear_z;                // [C, hidden], [Hv*dv, hidden]
  at::Tensor linear_beta, linear_decay;           // [Hv, hidden] x2
  at::Tensor linear_conv;                         // [C, 1, K]
  at::Tensor linear_decay_bias, linear_log_rate;  // [Hv] FP32
  at::Tensor linear_norm, linear_out;             // [dv], [hidden, Hv*dv]
  at::Tensor gate, up, down;                      // MLP; in a layer with experts, the shared expert if there is one
  at::Tensor gate_bias, up_bias, down_bias;
  at::Tensor router, router_bias;                    // instead of the MLP: [E, hidden], [E]
  at::Tensor router_correction;                      // [E] FP32
  at::Tensor expert_gate_up, expert_down;            // [E, 2I, hidden] with the gate rows first, [E, hidden, I]
  at::Tensor expert_gate_up_bias, expert_down_bias;  // [E, 2I], [E, hidden]
  at::Tensor shared_weight;                          // [1, hidden]
  // Experts beside an MLP with separate norms: for the MLP's output, the experts' input and the experts' output.
  at::Tensor dense_out_norm, experts_norm, experts_out_norm;  // [hidden]
  at::Tensor router_scale, expert_scale;                      // [hidden], [E]
};

class Decoder {
 public:
  // Checks every tensor, then loads the final norm and, without stream_layers, every layer. On a GPU the layers load in
  // the background, and run_layer() waits for its layer. embed() reads embedding rows from the file as needed; the
  // first logits() loads the head.
  // InputError names a missing or misshapen tensor. The checkpoint must outlive the decoder. For one thread at a time.
  Decoder(const Checkpoint& checkpoint, const DecoderOptions& options);
  ~Decoder();

  const ModelConfig& config() const;
  const DecoderOptions& options() const;

  // The rows passed between layers, [T, W] with W = ModelConfig::state_width(). In most families they contain only
  // hidden states.
  at::Tensor embed(const std::vector<std::int32_t>& ids) const;
  // hidden [T, W] -> [T, W]. Loads the layer's weights if they are not resident; stream_layers then drops the previous
  // layer. asked: undefined, or the requested rows as in decoder_layer().
  at::Tensor run_layer(std::int64_t layer, const at::Tensor& hidden, const SequenceBatch& batch, Attention& attention,
                       const at::Tensor& asked = {});
  at::Tensor final_norm(const at::Tensor& hidden) const;  // [T, W] -> [T, hidden]
  at::Tensor logits(const at::Tensor& normed) const;      // [T, vocabulary], FP32
  // Of some tokens: normed [R, P, hidden], tokens [R, K] int64 -> [R, P, K], FP32. Copies their rows of the head.
  at::Tensor logits_at(const at::Tensor& normed, const at::Tensor& tokens) const;
  void load_head() const;  // load the head now instead of in the first logits()
  // embed, all layers, final norm: [T, hidden].
  at::Tensor forward(const std::vector<std::int32_t>& ids, const SequenceBatch& batch, Attention& attention);

  const LayerWeights& layer_weights(std::int64_t layer);  // loads them when needed
  // W_O in the coordinates of attention outputs, [hidden, Hq d] (latent_attention.h). If the attention branch has a
  // norm, its channel factors are included.
  at::Tensor attention_out_weight(std::int64_t layer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
