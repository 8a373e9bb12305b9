#include "curves/curve_passes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "attention/cached_attention.h"
#include "base/errors.h"
#include "base/interrupt.h"
#include "curves/profile_attention.h"
#include "model/layer.h"
#include "text/sequences.h"

namespace oscar {
namespace {

constexpr std::int64_t kRoundedLayers = 4;  // distance of layers whose rounding is measured, if not that of all

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

// Where a run's time goes, beside the phase of all curves.
constexpr const char *kExactPhase = "curves: exact pass", *kCodedPhase = "curves: coded layers",
                     *kLaterPhase = "curves: later layers", *kKlPhase = "curves: KL",
                     *kAllPhase = "curves: all layers coded";

bool keeps_probabilities(const ModelConfig& model, at::Device device, std::int64_t sequences, std::int64_t context) {
  return device.is_cpu() && sequences * (context / kCurveStride) * model.vocabulary * 4 <= kMostProbabilityBytes;
}

// The squared error of each copy's rows over their energy, mean over the rows. copies: [P, rows, hidden].
std::vector<double> relative_errors(const at::Tensor& copies, const at::Tensor& exact) {
  const at::Tensor energy = exact.square().sum(-1, false, at::kDouble).clamp_min_(1e-30);
  const at::Tensor means = (copies - exact).square_().sum(-1, false, at::kDouble).div_(energy).mean(-1).cpu();
  return {means.const_data_ptr<double>(), means.const_data_ptr<double>() + means.numel()};
}

void stop_if_asked() {
  if (interrupt_requested()) throw InterruptedError("interrupted while curves were measured");
}

}  // namespace

CurvePasses::CurvePasses(Decoder& decoder, const std::vector<std::vector<std::int32_t>>& sequences,
                         const CacheWindows& windows, std::function<void(std::uint64_t)> on_layers, Timeline* timeline,
                         std::int64_t group_rows)
    : decoder_(decoder),
      sequences_(sequences),
      first_position_(first_scored_position(windows)),
      on_layers_(std::move(on_layers)),
      timeline_(timeline),
      group_rows_(group_rows > 0 || decoder.options().device.is_cpu() ? group_rows : kGroupRows) {
  const Timeline::Phase running(timeline_, kExactPhase);
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
        baseline_[s].hidden = run_behind({s}, 1, exact, layer, layer, 1, true).front();
        continue;
      }
      hidden[s] = decoder.run_layer(layer, hidden[s], copies_of(hidden[s].size(0), 1), exact);
      on_layers_(1);
    }
  }
}

std::vector<CurvePasses::Group> CurvePasses::groups(const Group& sequences, std::int64_t copies) const {
  const std::int64_t rows = copies * std::ssize(sequences_.front());
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(1, group_rows_ / rows));
  std::vector<Group> out;
  for (std::size_t first = 0; first < sequences.size(); first += size) {
    const auto begin = sequences.begin() + static_cast<std::ptrdiff_t>(first);
    out.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(std::min(size, sequences.size() - first)));
  }
  return out;
}

CurvePasses::Group CurvePasses::all_sequences() const {
  Group all(sequences_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

at::Tensor CurvePasses::scored_rows(std::int64_t tokens, at::Device device) const {
  return at::arange(first_position_, tokens - 1, kCurveStride, at::TensorOptions(at::kLong).device(device));
}

at::Tensor CurvePasses::run_after_windows(const Group& group, std::int64_t layer, const at::Tensor& hidden,
                                          std::int64_t copies, const at::Tensor& rows) {
  const ModelConfig& config = decoder_.config();
  const std::int64_t sequences = std::ssize(group), all = sequences * copies, tokens = std::ssize(sequences_[group[0]]);
  std::vector<at::Tensor> starts;  // of each sequence
  for (const std::size_t s : group) {
    starts.push_back(entering_[s][static_cast<std::size_t>(layer)].narrow(0, 0, first_position_));
  }
  // The fused prefill of a CPU has no soft cap and no sink logits, and a window leaves it little to share.
  const bool sees_all = config.logit_soft_cap == 0.0 && !decoder_.layer_weights(layer).sinks.defined();
  if (!config.is_linear(layer) && !config.is_local(layer) && (sees_all || hidden.is_cuda())) {
    SharedStartAttention attention;
    starts.push_back(hidden);
    const std::int64_t rest = tokens - first_position_, offset = (sequences - 1) * first_position_;
    return decoder_.run_layer(layer, at::cat(starts), shared_start_batch(first_position_, tokens, copies, sequences),
                              attention, of_copies(rows + offset, all, rest));
  }
  std::vector<at::Tensor> whole;
  const std::vector<at::Tensor> each = hidden.chunk(all);
  for (std::size_t c = 0; c < each.size(); ++c) {
    whole.push_back(starts[c / static_cast<std::size_t>(copies)]), whole.push_back(each[c]);
  }
  ExactCacheAttention attention;
  return decoder_.run_layer(layer, at::cat(whole), copies_of(tokens, all), attention, of_copies(rows, all, tokens));
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
  const Timeline::Phase running(timeline_, kKlPhase);
  if (decoder_.config().vocabulary < kLeastSampledVocabulary) {
    return mean_divergences(decoder_, baseline(s), versions, where);
  }
  sampled_.resize(sequences_.size());
  if (!sampled_[s].tokens.defined()) sampled_[s] = sample_logits(decoder_, baseline_[s].hidden);
  return sampled_divergences(decoder_, baseline_[s].hidden, sampled_[s], versions, where);
}

std::vector<at::Tensor> CurvePasses::run_behind(const Group& group, std::int64_t copies, Attention& attention,
                                                std::int64_t first, std::int64_t last, std::int64_t later, bool counted,
                                                std::vector<std::vector<double>>* errors) {
  // After the last layer only the scored rows are read, and after the quantized layers only the rows that see a
  // quantized one.
  const std::int64_t tokens = std::ssize(sequences_.front()), end = decoder_.config().layers;
  const at::Tensor scored = scored_rows(tokens, decoder_.options().device);
  const at::Tensor after_windows = at::arange(first_position_, tokens, scored.options());
  const auto rows_of = [&](std::int64_t layer) { return layer == end - 1 ? scored : after_windows; };
  std::vector<at::Tensor> going_on;
  for (const Group& part : groups(group, copies)) {
    std::vector<at::Tensor> entering;
    for (const std::size_t s : part) {
      const at::Tensor& one = entering_[s][static_cast<std::size_t>(first)];
      entering.push_back(copies == 1 ? one : one.repeat({copies, 1}));
    }
    at::Tensor hidden = entering.size() == 1 ? entering.front() : at::cat(entering);
    const std::int64_t sequences = std::ssize(part), all = sequences * copies;
    const SequenceBatch batch = copies_of(tokens, all);
    for (std::int64_t layer = first; layer <= last; ++layer) {
      stop_if_asked();
      hidden = decoder_.run_layer(layer, hidden, batch, attention,
                                  layer == last ? of_copies(rows_of(layer), all, tokens) : at::Tensor());
      on_layers_(static_cast<std::uint64_t>(counted ? all : 0));
    }
    const at::Tensor each = hidden.view({sequences, copies, -1, hidden.size(1)});
    for (std::int64_t g = 0; errors != nullptr && g < sequences; ++g) {
      const at::Tensor& exact = entering_[part[static_cast<std::size_t>(g)]][static_cast<std::size_t>(last + 1)];
      errors->push_back(relative_errors(each[g], exact.index_select(0, after_windows)));
    }
    going_on.push_back(each.narrow(1, 0, later).flatten(0, 2));
  }
  at::Tensor hidden = going_on.size() == 1 ? going_on.front() : at::cat(going_on);
  const std::int64_t sequences = std::ssize(group);
  const Timeline::Phase running(last + 1 < end ? timeline_ : nullptr, kLaterPhase);
  for (std::int64_t layer = last + 1; layer < end; ++layer) {
    stop_if_asked();
    hidden = run_after_windows(group, layer, hidden, later, rows_of(layer));
    on_layers_(static_cast<std::uint64_t>(counted ? sequences * later : 0));
  }
  return decoder_.final_norm(hidden).chunk(sequences * later);
}

PassResult CurvePasses::measure(const WidthMethods& methods, std::int64_t layer, Side side,
                                const std::vector<Widths>& profiles, bool one) {
  const std::int64_t number = decoder_.config().kv_layer(layer), copies = std::ssize(profiles);
  const std::string where = "layer " + std::to_string(number) + (side == Side::kKey ? " keys" : " values");
  const bool derives = one && copies > 1 && number + 1 < decoder_.config().layers;
  const std::int64_t passing = derives ? 1 : copies;
  PassResult result;
  result.rounding = one ? rounding_near(methods, layer) : rounding(methods, layer);
  result.kl.assign(profiles.size(), std::vector<double>(sequences_.size(), 0.0));
  std::vector<std::vector<double>> errors;  // of all profiles in each sequence
  ProfileAttention quantized(methods, side, profiles, false);
  for (const Group& group : groups(all_sequences(), passing)) {
    std::vector<at::Tensor> versions;
    {
      const Timeline::Phase running(timeline_, kCodedPhase);
      versions = run_behind(group, copies, quantized, number, number, passing, true, derives ? &errors : nullptr);
    }
    for (std::size_t g = 0; g < group.size(); ++g) {
      const std::size_t s = group[g];
      const auto begin = versions.begin() + static_cast<std::ptrdiff_t>(g) * passing;
      const std::vector<double> kl = divergences(s, {begin, begin + passing}, where);
      for (std::size_t p = 0; p < kl.size(); ++p) result.kl[p][s] = std::max(kl[p] - result.rounding[s], 0.0);
    }
  }
  for (std::size_t s = 0; s < errors.size(); ++s) {
    for (std::size_t p = 1; p < profiles.size(); ++p) {
      result.kl[p][s] = result.kl[0][s] * (errors[s][p] / std::max(errors[s][0], 1e-30));
    }
  }
  return result;
}

const std::vector<double>& CurvePasses::rounding(const WidthMethods& methods, std::int64_t layer) {
  if (const auto found = rounding_.find(layer); found != rounding_.end()) return found->second;
  std::vector<double> kl(sequences_.size(), 0.0);
  if (!decoder_.options().rounds()) return rounding_[layer] = std::move(kl);
  const std::int64_t number = decoder_.config().kv_layer(layer);
  const std::vector<Widths> none;
  ProfileAttention transformed(methods, Side::kKey, none, true);
  for (const Group& group : groups(all_sequences(), 1)) {
    std::vector<at::Tensor> versions;
    {
      const Timeline::Phase running(timeline_, kCodedPhase);
      versions = run_behind(group, 1, transformed, number, number, 1, false);
    }
    for (std::size_t g = 0; g < group.size(); ++g) {
      kl[group[g]] = divergences(group[g], {versions[g]}, "layer " + std::to_string(number) + " without codes").front();
    }
  }
  return rounding_[layer] = std::move(kl);
}

std::vector<double> CurvePasses::rounding_near(const WidthMethods& methods, std::int64_t layer) {
  const std::int64_t from = layer - layer % kRoundedLayers;
  const std::int64_t to = std::min(from + kRoundedLayers, decoder_.config().kv_layers() - 1);
  std::vector<double> kl = rounding(methods, from);
  if (layer == from) return kl;
  const std::vector<double>& next = rounding(methods, to);
  const double share = static_cast<double>(layer - from) / static_cast<double>(to - from);
  for (std::size_t s = 0; s < kl.size(); ++s) kl[s] += share * (next[s] - kl[s]);
  return kl;
}

std::vector<double> CurvePasses::measure_end_to_end(const KvMethod& method) {
  const Timeline::Phase running(timeline_, kAllPhase);
  SimulatedPrefillAttention attention(method);
  std::vector<double> kl;
  for (const Group& group : groups(all_sequences(), 1)) {
    const auto versions = run_behind(group, 1, attention, 0, decoder_.config().layers - 1, 1, true);
    for (std::size_t g = 0; g < group.size(); ++g) {
      kl.push_back(mean_divergences(decoder_, baseline(group[g]), {versions[g]}, "all layers").front());
    }
  }
  return kl;
}

std::uint64_t CurvePasses::memory_bytes(const ModelConfig& m, const DecoderOptions& options, std::int64_t sequences,
                                        std::int64_t context, std::int64_t profiles) {
  const std::int64_t element = options.dtype == at::kFloat ? 4 : 2, own = profiles * context;
  const std::int64_t tokens = options.device.is_cuda() ? std::max(own, std::min(kGroupRows, sequences * own)) : own;
  const std::int64_t kept = sequences * context * m.hidden * (m.layers + 1) * element;
  const std::int64_t heads = (m.query_heads + 2 * m.kv_heads) * m.head_dim;
  const std::int64_t layer = tokens * (4 * m.hidden + 3 * heads) * 4 +
                             std::min(tokens, mlp_tokens(options.device)) * 2 * m.intermediate * element;
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
