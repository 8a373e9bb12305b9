#include "collect/reading_range.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace oscar {
namespace {

constexpr std::int64_t kPlaces = 8, kScored = 128;  // number of predicted runs of tokens, and tokens per run
constexpr std::int64_t kLogitRows = 64;             // logits held at once

using Ids = std::vector<std::int32_t>;

// First tokens of the predicted runs in the last quarter of `length` tokens.
std::vector<std::int64_t> places_of(std::int64_t length) {
  std::vector<std::int64_t> places;
  const std::int64_t room = length / 4 - kScored;
  for (std::int64_t i = 0; i < kPlaces; ++i) places.push_back(length - length / 4 + room * i / (kPlaces - 1));
  return places;
}

DecoderOptions streamed(DecoderOptions options) {
  options.stream_layers = options.prefetch = true;
  return options;
}

class Reader {
 public:
  Reader(const Checkpoint& checkpoint, const DecoderOptions& decoding, const Ids& ids,
         const std::function<void(std::int64_t)>& step)
      : decoder_(checkpoint, streamed(decoding)), ids_(ids), step_(step) {}

  // Mean losses over the runs of each length with all tokens before them; `few`: of `length` with kShortContext tokens.
  std::vector<double> read(const std::vector<std::int64_t>& lengths, std::int64_t length, double& few) {
    Ids all;
    SequenceBatch batch;
    const auto add = [&](std::int64_t first, std::int64_t count) {
      batch.ids.push_back(static_cast<std::int64_t>(batch.ids.size()));
      batch.lengths.push_back(count);
      batch.starts.push_back(0);
      all.insert(all.end(), ids_.begin() + first, ids_.begin() + first + count);
    };
    if (!lengths.empty()) add(0, lengths.front());
    const auto whole = static_cast<std::int64_t>(all.size());
    for (const std::int64_t place : places_of(length)) add(place - kShortContext, kShortContext + kScored);
    const at::Tensor hidden = forward(all, batch);
    std::vector<double> losses;
    for (const std::int64_t each : lengths) {
      double sum = 0;
      for (const std::int64_t place : places_of(each)) sum += loss(hidden, place, place);
      losses.push_back(sum / kPlaces);
    }
    few = 0;
    std::int64_t row = whole + kShortContext;
    for (const std::int64_t place : places_of(length)) {
      few += loss(hidden, row, place) / kPlaces;
      row += kShortContext + kScored;
    }
    return losses;
  }

 private:
  at::Tensor forward(const Ids& ids, const SequenceBatch& batch) {
    FullAttention attention;
    at::Tensor hidden = decoder_.embed(ids);
    for (std::int64_t layer = 0; layer < decoder_.config().layers; ++layer) {
      hidden = decoder_.run_layer(layer, hidden, batch, attention);
      if (step_) step_(layer + 1);
    }
    return hidden;
  }

  // Mean loss of kScored tokens, from token `token` of the sequence on, whose rows in the batch begin at `row`.
  double loss(const at::Tensor& hidden, std::int64_t row, std::int64_t token) const {
    double sum = 0;
    for (std::int64_t first = 0; first < kScored; first += kLogitRows) {
      const at::Tensor logits =
          decoder_.logits(decoder_.final_norm(hidden.narrow(0, row + first - 1, kLogitRows))).to(at::kFloat);
      const auto begin = ids_.begin() + token + first;
      const std::vector<std::int64_t> next(begin, begin + kLogitRows);
      const at::Tensor labels = at::tensor(at::ArrayRef<std::int64_t>(next), at::kLong).to(logits.device());
      sum -= at::log_softmax(logits, -1).gather(1, labels.unsqueeze(1)).sum(at::kDouble).item<double>();
    }
    if (!std::isfinite(sum)) {
      throw NumericalError("the model's loss on the calibration prompts is not finite (token " + std::to_string(token) +
                           " of the first sequence); check the checkpoint, or try --dtype float32");
    }
    return sum / kScored;
  }

  Decoder decoder_;
  const Ids& ids_;
  const std::function<void(std::int64_t)>& step_;
};

}  // namespace

std::vector<std::int64_t> tried_lengths(std::int64_t tokens) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = tokens; length >= 2 * kLeastRange; length /= 2) lengths.push_back(length);
  return lengths;
}

ReadingRange reading_range(const Checkpoint& checkpoint, const DecoderOptions& decoding, const Ids& ids,
                           const std::function<void(std::int64_t)>& step) {
  ReadingRange range{static_cast<std::int64_t>(ids.size()), 0, 0.0, 0.0};
  const std::vector<std::int64_t> lengths = tried_lengths(range.tokens);
  if (lengths.empty()) return range;
  const c10::InferenceMode no_gradients;
  Reader reader(checkpoint, decoding, ids, step);
  double few = 0;
  std::vector<double> losses = reader.read(lengths, lengths[0], few);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (i > 0) reader.read({}, lengths[i], few);
    if (losses[i] - few <= kMostLoss) return {lengths[i], range.beyond, range.beyond_loss, range.beyond_short};
    range = {std::max(lengths[i] / 2, kLeastRange), lengths[i], losses[i], few};
  }
  return range;
}

}  // namespace oscar
