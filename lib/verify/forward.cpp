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

std::vector<at::Tensor> prefill_hidden(Decoder& decoder, const std::vector<std::int32_t>& ids,
                                       const std::vector<Attention*>& attentions, const PassPhases& phases) {
  const SequenceBatch batch{{0}, {static_cast<std::int64_t>(ids.size())}, {0}};
  std::vector<at::Tensor> hidden(attentions.size(), decoder.embed(ids));
  for (std::int64_t layer = 0; layer < decoder.config().layers; ++layer) {
    {
      const Timeline::Phase weights(phases.timeline, verify_phase::kWeights);
      decoder.layer_weights(layer);  // streamed layers are loaded here
    }
    for (std::size_t a = 0; a < attentions.size(); ++a) {
      stop_if_interrupted();
      const Timeline::Phase forward(phases.timeline, phases.timeline != nullptr ? phases.names[a] : "");
      hidden[a] = decoder.run_layer(layer, hidden[a], batch, *attentions[a]);
    }
  }
  for (at::Tensor& h : hidden) h = decoder.final_norm(h);
  return hidden;
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

}  // namespace oscar
