// Hidden states of whole sequences through the two paths of a quantised cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention/cached_attention.h"
#include "base/timeline.h"
#include "model/decoder.h"

namespace oscar {

// Phases for the parts of passes; a null timeline: nothing is measured.
struct PassPhases {
  Timeline* timeline = nullptr;
  std::vector<std::string> names;  // [attentions]
};

// One sequence, all tokens at once, through each attention: after the final norm, [attentions] of [T, hidden]. Layer by
// layer for all attentions, so that streamed weights are loaded once.
std::vector<at::Tensor> prefill_hidden(Decoder& decoder, const std::vector<std::int32_t>& ids,
                                       const std::vector<Attention*>& attentions, const PassPhases& phases = {});

// Sequences of equal length, one token of each at a time, through the paged cache: [sequences] of [T, hidden]. Uses
// and releases the cache slots 0 .. sequences - 1.
std::vector<at::Tensor> decode_hidden(Decoder& decoder, const std::vector<const std::vector<std::int32_t>*>& sequences,
                                      PagedAttention& attention, const std::function<void(std::int64_t)>& progress);

// Throws InterruptedError when SIGINT was received.
void stop_if_interrupted();

}  // namespace oscar
