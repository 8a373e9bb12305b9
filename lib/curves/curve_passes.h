// The forward passes of measured curves. One exact pass keeps the hidden states that enter each layer. Then a layer
// with one side quantized, and the later layers with an exact cache, run for several profiles at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "curves/mean_divergence.h"
#include "curves/profile_attention.h"
#include "curves/sampled_logits.h"
#include "model/decoder.h"

namespace oscar {

// Distance between positions at which KL is measured. Neighbors see nearly the same context, so half of them carry as
// much information as all. Logits over the vocabulary are a large part of a pass.
inline constexpr std::int64_t kCurveStride = 2;

// Limit in bytes of the baseline's probabilities in main memory, for all sequences together. On a GPU, and for a larger
// vocabulary, each call recomputes them.
inline constexpr std::int64_t kMostProbabilityBytes = std::int64_t{512} << 20;

// Mean KL to the exact cache for each profile and sequence. It is taken over every kCurveStride-th position that sees a
// quantized key and has a next token to predict.
struct PassResult {
  std::vector<std::vector<double>> kl;  // [profiles][sequences], nats, without the rounding
  std::vector<double> rounding;         // [sequences] CurvePasses::rounding() of the layer
};

class CurvePasses {
 public:
  // Runs the exact pass. on_layers: progress, in passes of one sequence through one layer. All arguments must outlive
  // the object.
  CurvePasses(Decoder& decoder, const std::vector<std::vector<std::int32_t>>& sequences, const CacheWindows& windows,
              std::function<void(std::uint64_t)> on_layers);

  // layer: index among the layers with a KV cache. one: on a CPU only the first profile passes the later layers, and
  // rounding is measured at every fourth layer. The KL of the other profiles is its KL times the ratio of their errors
  // after the quantized layer, relative to the residual stream. InterruptedError on SIGINT; NumericalError naming layer
  // and side.
  PassResult measure(const WidthMethods& methods, std::int64_t layer, Side side, const std::vector<Widths>& profiles,
                     bool one = false);

  // Mean KL of each sequence with all sides of all layers quantized as the method does; includes the rounding of
  // activations. InterruptedError on SIGINT; NumericalError.
  std::vector<double> measure_end_to_end(const KvMethod& method);

  // KL of each sequence from rounding in this layer and those after it: keys are transformed, which moves their last
  // bits, but not coded. Zeros if the decoder rounds nothing. Measured once for a layer; errors as measure().
  const std::vector<double>& rounding(const WidthMethods& methods, std::int64_t layer);

  // Bytes that an object and its measure() need on the device, for `profiles` at once.
  static std::uint64_t memory_bytes(const ModelConfig& model, const DecoderOptions& options, std::int64_t sequences,
                                    std::int64_t context, std::int64_t profiles);

 private:
  // Runs `copies` copies of sequence s through the layers from `first` on, those after `last` with an exact cache.
  // Returns the scored rows of each copy after the final norm, [copies][R, hidden]; progress: of each layer. errors:
  // null, or gets the errors of the copies after the layer `last`, from where on only the first one goes on; stays
  // empty after the last layer of the model, and on a GPU.
  std::vector<at::Tensor> run_behind(std::size_t s, std::int64_t copies, Attention& attention, std::int64_t first,
                                     std::int64_t last, std::uint64_t progress, std::vector<double>* errors = nullptr);
  // An exact layer for the rows of each copy that see quantized keys; the rows before them are those of the baseline.
  // hidden: [copies * (T - first position)]; rows: positions whose outputs are wanted.
  at::Tensor run_after_windows(std::size_t s, std::int64_t layer, const at::Tensor& hidden, std::int64_t copies,
                               const at::Tensor& rows);
  at::Tensor scored_rows(std::int64_t tokens) const;  // [R] int64: the scored positions
  DivergenceBaseline& baseline(std::size_t s);
  // Of versions with one side quantized; large vocabularies are sampled.
  std::vector<double> divergences(std::size_t s, const std::vector<at::Tensor>& versions, const std::string& where);

  Decoder& decoder_;
  const std::vector<std::vector<std::int32_t>>& sequences_;
  std::int64_t first_position_;
  std::function<void(std::uint64_t)> on_layers_;
  std::vector<std::vector<at::Tensor>> entering_;         // [sequences][layers] of [T, hidden]
  std::vector<DivergenceBaseline> baseline_;              // [sequences]
  std::vector<SampledLogits> sampled_;                    // [sequences]; empty for a small vocabulary
  std::map<std::int64_t, std::vector<double>> rounding_;  // of the layers that were asked for
};

}  // namespace oscar
