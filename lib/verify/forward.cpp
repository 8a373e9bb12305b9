#include "verify/forward.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "base/interrupt.h"
#include "verify/verify_phases.h"

namespace oscar {

void stop_if_interrupted() {
  if (interrupt_requested()) {
    throw InterruptedError("interrupted: no report was written; the same command starts the measurement again " +
                           std::string("(with --report or --work-dir it could be continued)"));
  }
}

std::vector<at::Tensor> prefill_hidden(Decoder& decoder, const std::vector<PrefillRun>& runs, Timeline* timeline,
                                       const std::function<void(std::int64_t)>& after_layer) {
  std::vector<at::Tensor> hidden;
  for (const PrefillRun& run : runs) hidden.push_back(decoder.embed(*run.ids));
  for (std::int64_t layer = 0; layer < decoder.config().layers; ++layer) {
    {
      const Timeline::Phase weights(timeline, verify_phase::kWeights);
      decoder.layer_weights(layer);  // loads streamed layers
    }
    for (std::size_t r = 0; r < runs.size(); ++r) {
      stop_if_interrupted();
      const Timeline::Phase forward(timeline, runs[r].phase);
      const SequenceBatch batch{{0}, {static_cast<std::int64_t>(runs[r].ids->size())}, {0}};
      hidden[r] = decoder.run_layer(layer, hidden[r], batch, *runs[r].attention);
    }
    if (after_layer) after_layer(layer + 1);
  }
  for (at::Tensor& h : hidden) h = decoder.final_norm(h);
  return hidden;
}

std::vector<at::Tensor> prefill_hidden(Decoder& decoder, const std::vector<std::int32_t>& ids,
                                       const std::vector<Attention*>& attentions) {
  std::vector<PrefillRun> runs;
  for (Attention* attention : attentions) runs.push_back({&ids, attention, ""});
  return prefill_hidden(decoder, runs);
}

std::vector<at::Tensor> decode_hidden(Decoder& decoder, const std::vector<const std::vector<std::int32_t>*>& sequences,
                                      PagedAttention& attention, const std::function<void(std::int64_t)>& progress) {
  const auto count = static_cast<std::int64_t>(sequences.size());
  const auto length = static_cast<std::int64_t>(sequences.front()->size());
  std::vector<std::vector<at::Tensor>> steps(sequences.size());  // [sequences][T] of [1, hidden]
  SequenceBatch batch;
  for (std::int64_t s = 0; s < count; ++s) batch.ids.push_back(s);
  batch.lengths.assign(sequences.size(), 1);
  for (std::int64_t t = 0; t < length; ++t) {
    stop_if_interrupted();
    std::vector<std::int32_t> ids;
    for (const auto* sequence : sequences) ids.push_back((*sequence)[static_cast<std::size_t>(t)]);
    batch.starts.assign(sequences.size(), t);
    const at::Tensor hidden = decoder.forward(ids, batch, attention);  // [sequences, hidden]
    for (std::int64_t s = 0; s < count; ++s) steps[static_cast<std::size_t>(s)].push_back(hidden.narrow(0, s, 1));
    progress(count);
  }
  std::vector<at::Tensor> result;
  for (std::int64_t s = 0; s < count; ++s) {
    result.push_back(at::cat(steps[static_cast<std::size_t>(s)]));
    attention.release(s);
  }
  return result;
}

at::Tensor CacheFiller::attend(const AttentionInput& input) {
  if (tokens_ > 0) {
    const SequenceBatch batch{{0}, {tokens_}, {0}};
    AttentionInput part = with_tokens(input, 0, tokens_);
    part.batch = &batch;
    cache_.append(part);
  }
  return inner_.attend(input);
}

bool can_fill_cache(const ModelConfig& model) {
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (model.is_linear(layer) || model.is_local(layer)) return false;
  }
  return true;
}

at::Tensor decode_tail(Decoder& decoder, const std::vector<std::int32_t>& ids, std::int64_t from, PagedAttention& cache,
                       const std::function<void(std::int64_t)>& progress) {
  std::vector<at::Tensor> rows;
  for (std::int64_t t = from; t < std::ssize(ids); ++t) {
    stop_if_interrupted();
    rows.push_back(decoder.forward({ids[static_cast<std::size_t>(t)]}, {{0}, {1}, {t}}, cache));
    progress(1);
  }
  cache.release(0);
  return at::cat(rows);
}

}  // namespace oscar
