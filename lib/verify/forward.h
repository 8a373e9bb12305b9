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

// Decodes only the last tokens of a long sequence. An exact pass fills the paged cache with the tokens before them.

// Forwards an exact pass to `inner`, and appends the first `tokens` keys and values of each layer to the cache as
// sequence 0. Each call holds one sequence from position 0 on. inner and cache must outlive the object.
class CacheFiller : public Attention {
 public:
  CacheFiller(Attention& inner, PagedAttention& cache, std::int64_t tokens)
      : inner_(inner), cache_(cache), tokens_(tokens) {}
  at::Tensor attend(const AttentionInput& input) override;

 private:
  Attention& inner_;
  PagedAttention& cache_;
  std::int64_t tokens_;
};

// Whether keys and values are a token's only state in the model: no recurrent states, and no layers with separate
// caches.
bool can_fill_cache(const ModelConfig& model);

// Decodes tokens [from, T) of a sequence one by one and returns their hidden states after the final norm: [T - from,
// hidden]. The cache must hold the first `from` tokens as sequence 0, which is then released.
at::Tensor decode_tail(Decoder& decoder, const std::vector<std::int32_t>& ids, std::int64_t from, PagedAttention& cache,
                       const std::function<void(std::int64_t)>& progress);

}  // namespace oscar
