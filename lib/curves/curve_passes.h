// The forward passes of measured curves: hidden states that enter each layer are kept from one exact pass; then a layer
// with one side quantized, and the layers behind it with an exact cache, run for several profiles at once.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "curves/mean_divergence.h"
#include "curves/profile_attention.h"
#include "model/decoder.h"

namespace oscar {

// Every how many positions KL is measured. What neighbors see is nearly the same, so that half of them say as much as
// all, and logits over the vocabulary are a large part of a pass.
inline constexpr std::int64_t kCurveStride = 2;

// Bytes of the baseline's probabilities that are kept in main memory, when all sequences' fit; on a GPU, and in a model
// with a large vocabulary, each call makes them anew.
inline constexpr std::int64_t kMostProbabilityBytes = std::int64_t{512} << 20;

// Mean KL to the exact cache over every kCurveStride-th of the positions that see a quantized key and have a token to
// predict, for each profile and sequence.
struct PassResult {
  std::vector<std::vector<double>> kl;  // [profiles][sequences], nats
  std::vector<double> rounding;         // [sequences] KL of a pass with nothing coded; zeros in FP32
};

class CurvePasses {
 public:
  // Runs the exact pass. on_layers: progress, in passes of one sequence through one layer. All must outlive the object.
  CurvePasses(Decoder& decoder, const std::vector<std::vector<std::int32_t>>& sequences, const CacheWindows& windows,
              std::function<void(std::uint64_t)> on_layers);

  // layer: a place among those that hold a KV cache. With latent attention the vector is coded, and `side` is kKey.
  // InterruptedError on SIGINT; NumericalError naming layer and side.
  PassResult measure(const WidthMethods& methods, std::int64_t layer, Side side, const std::vector<Widths>& profiles);

  // Mean KL of each sequence with all sides of all layers as the method has them; the rounding of activations is in it.
  // InterruptedError on SIGINT; NumericalError.
  std::vector<double> measure_whole(const KvMethod& method);

  // Bytes that an object and its measure() hold on the device, for `profiles` at once.
  static std::uint64_t memory_bytes(const ModelConfig& model, const DecoderOptions& options, std::int64_t sequences,
                                    std::int64_t context, std::int64_t profiles);

 private:
  // Of sequence s in `copies` copies through layers from `first` on, those behind `last` with an exact cache: the rows
  // that count of each copy, behind the final norm. [copies][R, hidden]; progress: of each layer
  std::vector<at::Tensor> run_behind(std::size_t s, std::int64_t copies, Attention& attention, std::int64_t first,
                                     std::int64_t last, std::uint64_t progress);
  at::Tensor scored_rows(std::int64_t tokens, std::int64_t copies) const;  // [copies * R] int64: those that count
  DivergenceBaseline& baseline(std::size_t s);

  Decoder& decoder_;
  const std::vector<std::vector<std::int32_t>>& sequences_;
  std::int64_t first_position_;
  std::function<void(std::uint64_t)> on_layers_;
  std::vector<std::vector<at::Tensor>> entering_;  // [sequences][layers] of [T, hidden]
  std::vector<DivergenceBaseline> baseline_;       // [sequences]
};

}  // namespace oscar
