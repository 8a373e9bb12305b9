// Hidden states of whole sequences through the two paths of a quantized cache.
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

// One sequence, all its tokens at once, through one attention.
struct PrefillRun {
  const std::vector<std::int32_t>* ids = nullptr;
  Attention* attention = nullptr;
  std::string phase;  // of the timeline
};

// Hidden states after the final norm, [runs] of [T, hidden]. Layer by layer for all runs, in their order, so that
// streamed weights are loaded once. after_layer: may be empty; the number of layers done. A null timeline: nothing is
// measured.
std::vector<at::Tensor> prefill_hidden(Decoder& decoder, const std::vector<PrefillRun>& runs,
                                       Timeline* timeline = nullptr,
                                       const std::function<void(std::int64_t)>& after_layer = {});

// The same of one sequence through each attention.
std::vector<at::Tensor> prefill_hidden(Decoder& decoder, const std::vector<std::int32_t>& ids,
                                       const std::vector<Attention*>& attentions);

// Sequences of equal length, one token of each at a time, through the paged cache: [sequences] of [T, hidden]. Uses
// and releases the cache slots 0 .. sequences - 1.
std::vector<at::Tensor> decode_hidden(Decoder& decoder, const std::vector<const std::vector<std::int32_t>*>& sequences,
                                      PagedAttention& attention, const std::function<void(std::int64_t)>& progress);

// Throws InterruptedError when SIGINT was received.
void stop_if_interrupted();

}  // namespace oscar
