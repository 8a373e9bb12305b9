// Executes a bundle with learned codebooks on the keys or values of one sequence: what a reader of the cache would get
// back, in the model's own basis. Sides without a codebook have the 2-bit code, rotation and clip of method oscar.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"
#include "codec/codec.h"
#include "layout/side.h"
#include "rotation/transform.h"

namespace oscar {

class CodebookEngine {
 public:
  // layers: those of the bundle, in order; a layer that it leaves out is not asked for. group and encoder: of sides
  // without a codebook. InputError where codebooks of keys before RoPE meet a model whose layers do not share one
  // rotary embedding over all channels.
  CodebookEngine(std::vector<LayerTransform> layers, std::int64_t group, Encoder encoder, const ModelConfig& model);

  double bits_per_element() const;  // of a coded token, scales included, codebooks not; mean over sides and layers
  const std::vector<LayerTransform>& layers() const { return layers_; }

  // rows: [T, H, d] FP32, the tokens from position 0 on, on the CPU or a GPU. Returns [T, H, d] on the same device: the
  // decoded values of every token. NumericalError when a row is not finite.
  at::Tensor reconstruct(std::int64_t layer, Side side, const at::Tensor& rows) const;

  // Whether the codebooks of all keys tell their errors (Codebook::errors), and the bytes of these.
  bool knows_errors() const;
  std::uint64_t error_bytes() const;

  // What codes add to the variance of keys, which is negative: a centroid is the mean of its cell, so that what varies
  // within the cell is lost. [T, H, d] FP32 of the channels of code_basis(); keys: [T, H, d] as in reconstruct(). Of
  // keys before RoPE each channel has the mean of its plane. Needs knows_errors().
  at::Tensor added_variance(std::int64_t layer, const at::Tensor& keys) const;
  // Queries [T, Hq, d] in the basis of the codes of keys; of keys before RoPE as they are.
  at::Tensor code_basis(std::int64_t layer, const at::Tensor& q) const;

 private:
  at::Tensor apply_rope(const at::Tensor& rows, bool back) const;
  at::Tensor through_codec(const SideTransform& transform, Side side, const at::Tensor& rows) const;

  const LayerTransform& layer_at(std::int64_t layer) const;  // by its place among the model's layers with a KV cache

  std::vector<LayerTransform> layers_;
  std::vector<std::size_t> index_;  // [L] place in the model -> place in layers_; past its end: left out
  std::int64_t group_;
  Encoder encoder_;
  at::Tensor inverse_frequency_;  // [d/2], keys before RoPE; undefined where there are none
  double attention_factor_ = 1.0;
};

}  // namespace oscar
