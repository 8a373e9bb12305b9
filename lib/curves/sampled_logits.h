// KL of a large vocabulary from a few hundred of its logits. Curves compare many versions of the same hidden states,
// and a product with the whole head for each takes most of their time. Here each row keeps its kLikely most probable
// tokens with their probabilities, and kDrawn others that stand for the rest: drawn in proportion to their probability,
// at equal distances of the cumulative sum (systematic sampling), so each has the same weight. The KL over these
// tokens,
//   ln sum w e^(D - m),   m = sum w D,   sum w = 1,
// estimates the KL over the vocabulary. All versions share the tokens, so their differences have little noise.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/decoder.h"

namespace oscar {

inline constexpr std::int64_t kLikely = 256, kDrawn = 256;       // tokens of a row
inline constexpr std::int64_t kLeastSampledVocabulary = 32'768;  // smaller ones are scored whole

struct SampledLogits {
  at::Tensor tokens;   // [R, kLikely + kDrawn] int64
  at::Tensor weights;  // [R, kLikely + kDrawn] FP32, rows add up to 1
};

// hidden: [R, hidden] after the final norm. The vocabulary must have more than kLikely tokens.
SampledLogits sample_logits(const Decoder& decoder, const at::Tensor& hidden);

// As mean_divergences(), estimated from the sampled tokens.
std::vector<double> sampled_divergences(const Decoder& decoder, const at::Tensor& hidden, const SampledLogits& sampled,
                                        const std::vector<at::Tensor>& versions, const std::string& where);

// Bytes of the weights that sampled_divergences() gathers at once, for one row and in all.
std::int64_t gathered_row_bytes(const ModelConfig& model, std::int64_t element);
std::int64_t gathered_bytes(at::Device device);

}  // namespace oscar
