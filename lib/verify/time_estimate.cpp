#include "verify/time_estimate.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "attention/cached_attention.h"
#include "base/clock.h"
#include "model/device_settle.h"
#include "model/layer_timer.h"
#include "verify/divergence.h"

namespace oscar {
namespace {

constexpr std::int64_t kSampleTokens = 2048, kSteps = 8;

}  // namespace

TimeEstimate estimate_time(const Checkpoint& checkpoint, const DecoderOptions& options,
                           const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                           const SequenceSet& set, const TimeRequest& request) {
  const c10::InferenceMode no_gradients;
  LayerTimer probe(checkpoint, options, std::min(set.context, kSampleTokens));
  Decoder& decoder = probe.decoder();
  const std::int64_t count = std::ssize(set.sequences), tokens = probe.tokens();
  const auto layers = static_cast<double>(decoder.config().layers), context = static_cast<double>(set.context);
  const std::vector<std::int32_t> ids = probe.ids(tokens);
  const at::Tensor hidden = decoder.embed(ids);
  const std::int64_t sample = decoder.config().kv_layer(0);  // assumes that decoding costs the same in all layers
  const auto pass_seconds = [&](const KvMethod& method) {
    return probe.all_layers(
        probe
            .rates([&](std::int64_t layer, std::int64_t length) {
              SimulatedPrefillAttention attention(method);
              const SequenceBatch batch{{0}, {length}, {0}};
              const at::Tensor rows = hidden.narrow(0, 0, length);
              return std::vector{warm_seconds([&] { wait_for(decoder.run_layer(layer, rows, batch, attention)); })};
            })
            .front(),
        set.context);
  };
  const double exact = pass_seconds(baseline);

  const std::int64_t rows = std::min(rows_per_block(decoder.config().vocabulary, options.device), tokens - 1);
  const at::Tensor normed = decoder.final_norm(hidden.narrow(0, 0, rows));
  const std::vector<std::int32_t> targets(ids.begin() + 1, ids.begin() + 1 + rows);
  const double block = warm_seconds([&] {
    const at::Tensor logits = decoder.logits(normed);
    SequenceScores scores;
    BaselineRows(logits, targets, "sample").score(logits, "sample", scores);
  });
  const double scores = block / static_cast<double>(rows) * (context - static_cast<double>(request.first_position));

  double seconds = static_cast<double>(count + 1) * (exact + scores);  // including the null run
  double coded = 0, step = 0;  // of a pass with a method; of a decoded token in a layer
  const double probed = static_cast<double>(std::clamp<std::int64_t>(request.layer_sequences, 1, count));
  for (const KvMethod* m : methods) {
    if (m->quantized && coded == 0) coded = pass_seconds(*m);
    if (m->quantized && request.prefill) seconds += static_cast<double>(count) * (coded + scores);
    if (m->quantized) seconds += probed * coded;  // layer errors
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
      const double all = seconds_of([&] {
        for (std::int64_t i = 0; i < steps; ++i) {
          wait_for(decoder.run_layer(sample, row, at_once, attention));
          for (std::int64_t& at : at_once.starts) ++at;
        }
      });
      step = all / static_cast<double>(steps * group);
    }
    const double steps = request.decode_last > 0 ? static_cast<double>(request.decode_last) : context;
    seconds += static_cast<double>(count) * (layers * std::min(steps, context) * step + scores);
  }
  const double passes = 1.0 + static_cast<double>(methods.size());
  seconds += static_cast<double>(request.task_tokens) / context * std::max(exact, coded) * passes;
  return {seconds, tokens};
}

}  // namespace oscar
