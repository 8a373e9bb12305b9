// Hidden states of complete sequences through the two paths of a quantized cache.
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

// One sequence, all tokens at once, through one attention.
struct PrefillRun {
  const std::vector<std::int32_t>* ids = nullptr;
  Attention* attention = nullptr;
  std::string phase;  // phase name in the timeline
};

// Hidden states after the final norm, [runs] of [T, hidden]. Computes each layer for all runs, in order, so that
// streamed weights load once. after_layer: called with the number of finished layers; may be empty. Null timeline:
// measures nothing.
std::vector<at::Tensor> prefill_hidden(Decoder& decoder, const std::vector<PrefillRun>& runs,
                                       Timeline* timeline = nullptr,
                                       const std::function<void(std::int64_t)>& after_layer = {});

// The same for one sequence through each attention.
std::vector<at::Tensor> prefill_hidden(Decoder& decoder, const std::vector<std::int32_t>& ids,
                                       const std::vector<Attention*>& attentions);

// Decodes sequences of equal length through the paged cache, one token of each at a time: [sequences] of [T, hidden].
// Uses and releases the cache slots 0 .. sequences - 1.
std::vector<at::Tensor> decode_hidden(Decoder& decoder, const std::vector<const std::vector<std::int32_t>*>& sequences,
                                      PagedAttention& attention, const std::function<void(std::int64_t)>& progress);

// Throws InterruptedError after SIGINT.
void stop_if_interrupted();

}  // namespace oscar
