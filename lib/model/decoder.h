// The decoder-only transformer of all supported families: one forward path, families differ by names and quirks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/attention.h"

namespace oscar {

struct DecoderOptions {
  at::ScalarType dtype = at::kFloat;  // of weights and activations
  at::Device device = at::kCPU;
  bool stream_layers = false;  // layers are loaded on demand; at most one is resident, on a GPU two
  bool prefetch = false;       // stream_layers on a GPU: copy the next layer while one computes
};

// Weights of one layer; undefined tensors are absent. Linear weights are [out, in].
struct LayerWeights {
  at::Tensor input_norm, post_attention_norm;  // [hidden]
  at::Tensor q, k, v, o;                       // [Hq*d, hidden], [Hkv*d, hidden] x2, [hidden, Hq*d]
  at::Tensor q_bias, k_bias, v_bias, o_bias;
  at::Tensor q_norm, k_norm;  // [d]
  at::Tensor gate, up, down;  // MLP
  at::Tensor gate_bias, up_bias, down_bias;
};

class Decoder {
 public:
  // Checks every tensor, then loads the final norm, and every layer unless stream_layers. The embedding stays in the
  // file (embed() reads the rows it needs); the head is loaded by the first logits(). InputError names a missing or
  // misshapen tensor. The checkpoint must outlive the decoder. Not for use by several threads at once.
  Decoder(const Checkpoint& checkpoint, const DecoderOptions& options);
  ~Decoder();

  const ModelConfig& config() const;
  const DecoderOptions& options() const;

  at::Tensor embed(const std::vector<std::int32_t>& ids) const;  // [T, hidden]
  // hidden [T, hidden] -> [T, hidden]; loads the layer's weights when they are not resident (and drops the previous
  // layer's under stream_layers).
  at::Tensor run_layer(std::int64_t layer, const at::Tensor& hidden, const SequenceBatch& batch, Attention& attention);
  at::Tensor final_norm(const at::Tensor& hidden) const;  // [T, hidden]
  at::Tensor logits(const at::Tensor& normed) const;      // [T, vocabulary], FP32
  // embed, all layers, final norm: [T, hidden].
  at::Tensor forward(const std::vector<std::int32_t>& ids, const SequenceBatch& batch, Attention& attention);

  const LayerWeights& layer_weights(std::int64_t layer);  // loads when needed

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A view of a checkpoint tensor as an at::Tensor of the given dtype (a copy; unaligned data is handled).
at::Tensor to_tensor(const TensorView& view, at::ScalarType dtype, at::Device device = at::kCPU);

}  // namespace oscar
