#include "curves/curve_passes.h"

#include <ATen/ATen.h>

#include "attention/cached_attention.h"
#include "base/errors.h"
#include "base/interrupt.h"
#include "curves/profile_attention.h"
#include "text/sequences.h"

namespace oscar {
namespace {

constexpr std::int64_t kRoundedLayers = 4;  // share a measurement of rounding, which hardly changes with the layer

// P copies of a sequence of T tokens.
SequenceBatch copies_of(std::int64_t tokens, std::int64_t copies) {
  SequenceBatch batch;
  for (std::int64_t p = 0; p < copies; ++p) {
    batch.ids.push_back(p);
    batch.lengths.push_back(tokens);
    batch.starts.push_back(0);
  }
  return batch;
}

// Rows of one sequence -> the same rows of copies that are `distance` rows apart.
at::Tensor of_copies(const at::Tensor& rows, std::int64_t copies, std::int64_t distance) {
  return (at::arange(copies, rows.options()).mul_(distance).unsqueeze(1) + rows).flatten();
}

bool keeps_probabilities(const ModelConfig& model, at::Device device, std::int64_t sequences, std::int64_t context) {
  return device.is_cpu() && sequences * (context / kCurveStride) * model.vocabulary * 4 <= kMostProbabilityBytes;
}

// The squared error of each copy's rows over their energy, mean over the rows.
std::vector<double> relative_errors(const std::vector<at::Tensor>& copies, const at::Tensor& exact) {
  const at::Tensor energy = exact.square().sum(-1, false, at::kDouble).clamp_min_(1e-30);
  std::vector<double> errors;
  for (const at::Tensor& copy : copies) {
    errors.push_back((copy - exact).square_().sum(-1, false, at::kDouble).div_(energy).mean().item<double>());
  }
  return errors;
}

void stop_if_asked() {
  if (interrupt_requested()) throw InterruptedError("interrupted while curves were measured");
}

}  // namespace

CurvePasses::CurvePasses(Decoder& decoder, const std::vector<std::vector<std::int32_t>>& sequences,
                         const CacheWindows& windows, std::function<void(std::uint64_t)> on_layers)
    : decoder_(decoder),
      sequences_(sequences),
      first_position_(first_scored_position(windows)),
      on_layers_(std::move(on_layers)) {
  ExactCacheAttention exact;
  std::vector<at::Tensor> hidden;
  baseline_.resize(sequences.size());
  for (const std::vector<std::int32_t>& ids : sequences) {
    hidden.push_back(decoder.embed(ids));
    entering_.emplace_back();
  }
  for (std::int64_t layer = 0; layer < decoder.config().layers; ++layer) {  // outer loop: weights may be streamed
    for (std::size_t s = 0; s < hidden.size(); ++s) {
      stop_if_asked();
      entering_[s].push_back(hidden[s]);
      if (layer + 1 == decoder.config().layers) {
        baseline_[s].hidden = run_behind(s, 1, exact, layer, layer, 1).front();
        continue;
      }
      hidden[s] = decoder.run_layer(layer, hidden[s], copies_of(hidden[s].size(0), 1), exact);
      on_layers_(1);
    }
  }
}

at::Tensor CurvePasses::scored_rows(std::int64_t tokens) const {
  return at::arange(first_position_, tokens - 1, kCurveStride, at::TensorOptions().dtype(at::kLong));
}

at::Tensor CurvePasses::run_after_windows(std::size_t s, std::int64_t layer, const at::Tensor& hidden,
                                          std::int64_t copies, const at::Tensor& rows) {
  const at::Tensor& exact = entering_[s][static_cast<std::size_t>(layer)];
  const at::Tensor start = exact.narrow(0, 0, first_position_);
  const std::int64_t tokens = exact.size(0);
  const ModelConfig& config = decoder_.config();
  if (config.logit_soft_cap == 0.0 && !config.is_linear(layer) && !config.is_local(layer) &&
      !decoder_.layer_weights(layer).sinks.defined()) {
    SharedStartAttention attention;
    return decoder_.run_layer(layer, at::cat({start, hidden}), shared_start_batch(first_position_, tokens, copies),
                              attention, of_copies(rows, copies, tokens - first_position_));
  }
  std::vector<at::Tensor> whole;
  for (const at::Tensor& copy : hidden.chunk(copies)) whole.push_back(start), whole.push_back(copy);
  ExactCacheAttention attention;
  return decoder_.run_layer(layer, at::cat(whole), copies_of(tokens, copies), attention,
                            of_copies(rows, copies, tokens));
}

DivergenceBaseline& CurvePasses::baseline(std::size_t s) {
  const std::int64_t context = entering_[s].front().size(0);
  if (keeps_probabilities(decoder_.config(), decoder_.options().device, std::ssize(sequences_), context)) {
    baseline_[s].keep_probabilities(decoder_);
  }
  return baseline_[s];
}

std::vector<double> CurvePasses::divergences(std::size_t s, const std::vector<at::Tensor>& versions,
                                             const std::string& where) {
  if (decoder_.config().vocabulary < kLeastSampledVocabulary) {
    return mean_divergences(decoder_, baseline(s), versions, where);
  }
  sampled_.resize(sequences_.size());
  if (!sampled_[s].tokens.defined()) sampled_[s] = sample_logits(decoder_, baseline_[s].hidden);
  return sampled_divergences(decoder_, baseline_[s].hidden, sampled_[s], versions, where);
}

std::vector<at::Tensor> CurvePasses::run_behind(std::size_t s, std::int64_t copies, Attention& attention,
                                                std::int64_t first, std::int64_t last, std::uint64_t progress,
                                                std::vector<double>* errors) {
  ExactCacheAttention exact;
  const at::Tensor& entering = entering_[s][static_cast<std::size_t>(first)];
  const std::int64_t tokens = entering.size(0), end = decoder_.config().layers;
  const SequenceBatch batch = copies_of(tokens, copies);
  const at::Tensor scored = scored_rows(tokens);
  // After the last layer only the scored rows are read, and after the quantized layers only the rows that see a
  // quantized one. A GPU's attention answers all queries.
  const bool some = entering.is_cpu();
  const at::Tensor after_windows = at::arange(first_position_, tokens, scored.options());
  at::Tensor hidden = copies == 1 ? entering : entering.repeat({copies, 1});
  for (std::int64_t layer = first; layer < end; ++layer) {
    stop_if_asked();
    const at::Tensor& rows = layer == end - 1 ? scored : after_windows;
    if (some && layer > last) {
      hidden = run_after_windows(s, layer, hidden, copies, rows);
    } else {
      hidden = decoder_.run_layer(layer, hidden, batch, layer <= last ? attention : exact,
                                  some && layer >= last ? of_copies(rows, copies, tokens) : at::Tensor());
    }
    on_layers_(progress);
    if (errors == nullptr || !some || layer != last || layer + 1 == end) continue;
    const std::vector<at::Tensor> all = hidden.chunk(copies);
    *errors = relative_errors(all, entering_[s][static_cast<std::size_t>(layer + 1)].index_select(0, after_windows));
    hidden = all.front();
    copies = 1, progress = 1;
  }
  if (!some) hidden = hidden.index_select(0, of_copies(scored, copies, tokens).to(hidden.device()));
  std::vector<at::Tensor> versions;
  for (const at::Tensor& version : hidden.chunk(copies)) versions.push_back(decoder_.final_norm(version));
  return versions;
}

PassResult CurvePasses::measure(const WidthMethods& methods, std::int64_t layer, Side side,
                                const std::vector<Widths>& profiles, bool one) {
  const std::int64_t copies = static_cast<std::int64_t>(profiles.size());
  const std::int64_t number = decoder_.config().kv_layer(layer);
  const std::string where = "layer " + std::to_string(number) + (side == Side::kKey ? " keys" : " values");
  ProfileAttention quantized(methods, side, profiles, false);
  PassResult result;
  result.rounding = rounding(methods, one ? layer - layer % kRoundedLayers : layer);
  result.kl.resize(profiles.size());
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    std::vector<double> errors;
    const auto versions = run_behind(s, copies, quantized, number, number, static_cast<std::uint64_t>(copies),
                                     one && copies > 1 ? &errors : nullptr);
    const std::vector<double> kl = divergences(s, versions, where);
    for (std::size_t p = 0; p < profiles.size(); ++p) {
      const double least = errors.empty() ? kl[p] : kl.front();
      const double ratio = errors.empty() ? 1.0 : errors[p] / std::max(errors.front(), 1e-30);
      result.kl[p].push_back(std::max(least - result.rounding[s], 0.0) * ratio);
    }
  }
  return result;
}

const std::vector<double>& CurvePasses::rounding(const WidthMethods& methods, std::int64_t layer) {
  if (const auto found = rounding_.find(layer); found != rounding_.end()) return found->second;
  if (!decoder_.options().rounds()) return rounding_[layer] = std::vector<double>(sequences_.size(), 0.0);
  const std::int64_t number = decoder_.config().kv_layer(layer);
  const std::vector<Widths> none;
  ProfileAttention transformed(methods, Side::kKey, none, true);
  std::vector<double> kl;
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    const auto versions = run_behind(s, 1, transformed, number, number, 0);
    kl.push_back(divergences(s, versions, "layer " + std::to_string(number) + " without codes").front());
  }
  return rounding_[layer] = std::move(kl);
}

std::vector<double> CurvePasses::measure_end_to_end(const KvMethod& method) {
  SimulatedPrefillAttention attention(method);
  std::vector<double> kl;
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    const std::vector<at::Tensor> versions = run_behind(s, 1, attention, 0, decoder_.config().layers - 1, 1);
    kl.push_back(mean_divergences(decoder_, baseline(s), versions, "all layers").front());
  }
  return kl;
}

std::uint64_t CurvePasses::memory_bytes(const ModelConfig& m, const DecoderOptions& options, std::int64_t sequences,
                                        std::int64_t context, std::int64_t profiles) {
  const std::int64_t element = options.dtype == at::kFloat ? 4 : 2, tokens = profiles * context;
  const std::int64_t kept = sequences * context * m.hidden * (m.layers + 1) * element;
  const std::int64_t heads = (m.query_heads + 2 * m.kv_heads) * m.head_dim;
  const std::int64_t layer =
      tokens * (4 * m.hidden + 3 * heads) * 4 + std::min<std::int64_t>(tokens, 4096) * 2 * m.intermediate * element;
  const std::int64_t rows = context * m.query_heads * 5 * m.head_dim * 4 + context * m.kv_heads * m.head_dim * 4 * 16;
  // Blocks of scores, and of logits: probabilities, changes and a copy.
  const std::int64_t blocks = options.device.is_cuda()
                                  ? std::int64_t{2} << 30
                                  : std::max(std::int64_t{128} << 20, 3 * kLeastLogitRows * m.vocabulary * 4);
  const bool keeps = keeps_probabilities(m, options.device, sequences, context);
  const std::int64_t probabilities = keeps ? sequences * (context / kCurveStride) * m.vocabulary * 4 : 0;
  const bool samples = m.vocabulary >= kLeastSampledVocabulary;
  const std::int64_t sampled =
      samples ? sequences * (context / kCurveStride) * (kLikely + kDrawn) * 12 + gathered_bytes(options.device) : 0;
  return static_cast<std::uint64_t>(kept + layer + rows + blocks + probabilities + sampled);
}

}  // namespace oscar
