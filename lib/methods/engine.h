// Executes a method description on the keys or values of one sequence: what a reader of the cache would get back, in
// the model's own basis. Causal for every token from position 128 on: a group is coded when its last token has arrived
// (the windows say which groups a query sees coded), and what the authors calibrate on data (outlier channels) is
// taken from the first 128 tokens of the sequence.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "checkpoint/model_config.h"
#include "layout/side.h"
#include "methods/tile_codes.h"
#include "registry/method_spec.h"

namespace oscar {

// UsageError for a model with latent attention, whose tokens cache one vector: what codes keys and values differently
// has no place for it. what: "Method kivi".
void require_apart(const std::string& what, const ModelConfig& model);

// The same for a method of another paper, and UsageError when it does not fit the model's heads.
void require_fit(const MethodSpec& description, const ModelConfig& model);

inline constexpr std::uint64_t kRotationSeed = 20250428;  // of the random rotations; any fixed number

class MethodEngine {
 public:
  // UsageError when the method does not fit the model.
  MethodEngine(const MethodSpec& description, const ModelConfig& model);

  const MethodSpec& description() const { return description_; }
  const SideCode& side(Side side) const { return side == Side::kKey ? description_.key : description_.value; }
  // Bits of one element of a coded token; mean of keys and values.
  double bits_per_element() const;
  // What a sequence of `context` tokens holds (allocated_bytes), over its elements.
  double bits_per_element_at(std::int64_t context) const;

  // rows: [T, H, d] FP32, the tokens from position 0 on, on the CPU or a GPU. Returns [T, H, d]: the decoded values of
  // every token from the sink on whose tile is complete, the rows themselves elsewhere. NumericalError when a row is
  // not finite.
  at::Tensor reconstruct(Side side, const at::Tensor& rows) const;

  // Memory of one sequence of `tokens` tokens, in bytes, all layers: held_bytes() of both sides.
  std::uint64_t allocated_bytes(std::int64_t tokens) const;

 private:
  double held(std::int64_t tokens) const;  // allocated_bytes before it is rounded up
  std::int64_t hadamard_order(const SideCode& side) const;
  at::Tensor basis_matrix(const at::Tensor& rows) const;

  MethodSpec description_;
  std::int64_t layers_, heads_, head_dim_;
  at::Tensor random_;                       // [d, d] FP32, kRandom without boosted channels
  at::Tensor random_low_, random_boosted_;  // of the two parts otherwise
};

// [n, n] FP64 orthogonal: Q of the QR factorization of a Gaussian matrix with a positive diagonal of R, seeded.
at::Tensor random_orthogonal(std::int64_t n, std::uint64_t seed);

}  // namespace oscar
