#include "verify/time_estimate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

#include "attention/cached_attention.h"
#include "verify/divergence.h"

namespace oscar {
namespace {

constexpr std::int64_t kSampleTokens = 2048, kSteps = 8;

// Seconds of the second of two calls, because the first loads and warms up. `work` returns a tensor to wait for.
template <typename Work>
double seconds_of(const Work& work) {
  double seconds = 0;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    work().sum().template item<float>();  // item() waits for a GPU
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return seconds;
}

}  // namespace

TimeEstimate estimate_time(const Checkpoint& checkpoint, const DecoderOptions& options,
                           const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                           const SequenceSet& set, const TimeRequest& request) {
  const c10::InferenceMode no_gradients;
  DecoderOptions one_layer = options;
  one_layer.stream_layers = true;
  one_layer.prefetch = false;
  Decoder decoder(checkpoint, one_layer);
  const std::int64_t count = std::ssize(set.sequences), tokens = std::min(set.context, kSampleTokens);
  const auto layers = static_cast<double>(decoder.config().layers), context = static_cast<double>(set.context);
  std::vector<std::int32_t> ids(set.sequences.front().begin(), set.sequences.front().begin() + tokens);
  const at::Tensor hidden = decoder.embed(ids);
  const SequenceBatch batch{{0}, {tokens}, {0}};
  const std::int64_t sample = decoder.config().kv_layer(0);  // assumes that all layers cost the same
  // Longer contexts cost more than linearly, because attention grows quadratically. This is not counted beyond the
  // sample.
  const double scale = context / static_cast<double>(tokens);
  const auto layer_seconds = [&](const KvMethod& method) {
    SimulatedPrefillAttention attention(method);
    return scale * seconds_of([&] { return decoder.run_layer(sample, hidden, batch, attention); });
  };
  const double exact = layer_seconds(baseline);

  const std::int64_t rows = std::min(rows_per_block(decoder.config().vocabulary, options.device), tokens - 1);
  const at::Tensor normed = decoder.final_norm(hidden.narrow(0, 0, rows));
  const std::vector<std::int32_t> targets(ids.begin() + 1, ids.begin() + 1 + rows);
  const double block = seconds_of([&] {
    const at::Tensor logits = decoder.logits(normed);
    SequenceScores scores;
    BaselineRows(logits, targets, "sample").score(logits, "sample", scores);
    return logits;
  });
  const double scores = block / static_cast<double>(rows) * (context - static_cast<double>(request.first_position));

  double seconds = static_cast<double>(count + 1) * (layers * exact + scores);  // including the null run
  double coded = 0, step = 0;                                                   // per layer and method
  const double probed = static_cast<double>(std::clamp<std::int64_t>(request.layer_sequences, 1, count));
  for (const KvMethod* m : methods) {
    if (m->quantized && coded == 0) coded = layer_seconds(*m);
    if (m->quantized && request.prefill) seconds += static_cast<double>(count) * (layers * coded + scores);
    if (m->quantized) seconds += probed * layers * coded;  // layer errors
    if (!request.decode || !m->paged()) continue;
    if (step == 0) {
      PagedAttention attention(*m, decoder.config(), options.device);
      const std::int64_t body = tokens / 2, steps = std::min(kSteps, tokens - body);
      const std::int64_t group = request.decode_last > 0 ? 1 : std::min(request.decode_batch, count);
      SequenceBatch at_once;
      for (std::int64_t s = 0; s < group; ++s) {
        decoder.run_layer(sample, hidden.narrow(0, 0, body), {{s}, {body}, {0}}, attention);
        at_once.ids.push_back(s), at_once.lengths.push_back(1), at_once.starts.push_back(body);
      }
      const at::Tensor row = hidden.narrow(0, body, 1).expand({group, hidden.size(1)}).contiguous();
      const auto start = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < steps; ++i) {
        decoder.run_layer(sample, row, at_once, attention).sum().item<float>();
        for (std::int64_t& at : at_once.starts) ++at;
      }
      step = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
             static_cast<double>(steps * group);
    }
    const double steps = request.decode_last > 0 ? static_cast<double>(request.decode_last) : context;
    seconds += static_cast<double>(count) * (layers * std::min(steps, context) * step + scores);
  }
  const double passes = 1.0 + static_cast<double>(methods.size());
  seconds += static_cast<double>(request.task_tokens) / context * layers * std::max(exact, coded) * passes;
  return {seconds, tokens};
}

}  // namespace oscar
