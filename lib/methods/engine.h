// Runs a method description on the keys or values of one sequence: computes the rows that a reader of the cache gets,
// in the model's basis. It is causal for every token from position 128 on: a group is coded once its last token has
// arrived, and the windows define which groups a query sees coded. Outlier channels, which the authors calibrate on
// data, come from the first 128 tokens of the sequence.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "checkpoint/model_config.h"
#include "layout/side.h"
#include "registry/method_spec.h"

namespace oscar {

// UsageError if a method of another paper does not fit the model's heads, or codes keys and values differently where
// they are one row (latent attention).
void require_fit(const MethodSpec& description, const ModelConfig& model);

inline constexpr std::uint64_t kRotationSeed = 20250428;  // seed of the random rotations; any fixed number

class MethodEngine {
 public:
  // UsageError if the method does not fit the model.
  MethodEngine(const MethodSpec& description, const ModelConfig& model);

  const MethodSpec& description() const { return description_; }
  const SideCode& side(Side side) const { return side == Side::kKey ? description_.key : description_.value; }
  // Bits per element of a coded token; mean of keys and values.
  double bits_per_element() const;
  // Bits per element of a sequence of `context` tokens: allocated_bytes() over its elements.
  double bits_per_element_at(std::int64_t context) const;

  // rows: [T, H, d] FP32, tokens from position 0 on, on the CPU or a GPU; the CPU codes them. Returns [T, H, d]:
  // decoded rows for every token after the sink whose tile is complete, and the input rows elsewhere. NumericalError if
  // a row is not finite.
  at::Tensor reconstruct(Side side, const at::Tensor& rows) const;

  // Memory of one sequence of `tokens` tokens in bytes, all layers: held_bytes() of both sides, and channels beside.
  std::uint64_t allocated_bytes(std::int64_t tokens) const;

 private:
  double held(std::int64_t tokens) const;  // allocated_bytes() before rounding up
  at::Tensor basis_matrix(const at::Tensor& rows) const;

  MethodSpec description_;
  std::int64_t layers_, heads_, head_dim_;
  std::int64_t rope_dim_;                   // KvMethod::rope_dim
  at::Tensor random_low_, random_boosted_;  // FP32, for kRandom: of the two parts of the channels
};

// [n, n] FP64 orthogonal, seeded: Q of the QR factorization of a Gaussian matrix with a positive diagonal of R.
at::Tensor random_orthogonal(std::int64_t n, std::uint64_t seed);

}  // namespace oscar
