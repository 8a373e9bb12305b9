// The forward passes of measured curves. One exact pass keeps the hidden states that enter each layer. Then a layer
// with one side quantized, and the later layers with an exact cache, run for several profiles at once, and on a GPU for
// several sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "base/timeline.h"
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

// Rows that a GPU passes through a layer at once, at most: enough to fill it.
inline constexpr std::int64_t kGroupRows = 16'384;

// Mean KL to the exact cache for each profile and sequence. It is taken over every kCurveStride-th position that sees a
// quantized key and has a next token to predict.
struct PassResult {
  std::vector<std::vector<double>> kl;  // [profiles][sequences], nats, without the rounding
  std::vector<double> rounding;         // [sequences] CurvePasses::rounding() of the layer
};

class CurvePasses {
 public:
  // Runs the exact pass. on_layers: progress, in passes of one sequence through one layer. timeline: gets the phases of
  // curves; null: nothing is measured. group_rows: most rows in a layer at once; 0: kGroupRows on a GPU, on a CPU those
  // of one sequence. All arguments must outlive the object.
  CurvePasses(Decoder& decoder, const std::vector<std::vector<std::int32_t>>& sequences, const CacheWindows& windows,
              std::function<void(std::uint64_t)> on_layers, Timeline* timeline = nullptr, std::int64_t group_rows = 0);

  // layer: index among the layers with a KV cache. one: only the first profile passes the layers after the quantized
  // one; the others have its KL times the ratio of their errors there, relative to the residual stream. Rounding is
  // then measured at every fourth layer and the last, and between them it is on a line. InterruptedError on SIGINT;
  // NumericalError naming layer and side.
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
  using Group = std::vector<std::size_t>;  // sequences that pass a layer together
  // Sequences with `copies` copies each, in groups.
  std::vector<Group> groups(const Group& sequences, std::int64_t copies) const;
  // Runs `copies` copies of each sequence of the group through the layers from `first` on, those after `last` with an
  // exact cache and only the first `later` copies. Returns the scored rows of each of these after the final norm, [R,
  // hidden], sequence by sequence. counted: as progress. errors: null, or gets those of all copies after the layer
  // `last`, [sequences of the group][copies].
  std::vector<at::Tensor> run_behind(const Group& group, std::int64_t copies, Attention& attention, std::int64_t first,
                                     std::int64_t last, std::int64_t later, bool counted,
                                     std::vector<std::vector<double>>* errors = nullptr);
  // An exact layer for the rows of each copy that see quantized keys; the rows before them are those of the baseline.
  // hidden: [sequences * copies * (T - first position)]; rows: positions whose outputs are wanted.
  at::Tensor run_after_windows(const Group& group, std::int64_t layer, const at::Tensor& hidden, std::int64_t copies,
                               const at::Tensor& rows);
  std::vector<double> rounding_near(const WidthMethods& methods, std::int64_t layer);
  Group all_sequences() const;
  at::Tensor scored_rows(std::int64_t tokens, at::Device device) const;  // [R] int64: the scored positions
  DivergenceBaseline& baseline(std::size_t s);
  // Of versions with one side quantized; large vocabularies are sampled.
  std::vector<double> divergences(std::size_t s, const std::vector<at::Tensor>& versions, const std::string& where);

  Decoder& decoder_;
  const std::vector<std::vector<std::int32_t>>& sequences_;
  std::int64_t first_position_;
  std::function<void(std::uint64_t)> on_layers_;
  Timeline* timeline_;
  std::int64_t group_rows_;
  std::vector<std::vector<at::Tensor>> entering_;         // [sequences][layers] of [T, hidden]
  std::vector<DivergenceBaseline> baseline_;              // [sequences]
  std::vector<SampledLogits> sampled_;                    // [sequences]; empty for a small vocabulary
  std::map<std::int64_t, std::vector<double>> rounding_;  // of the layers that were asked for
};

}  // namespace oscar
