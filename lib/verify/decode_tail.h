// The last tokens of a long sequence on the decode path: a prefill pass fills the paged cache with the tokens before
// them, so that not every token has to be decoded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "attention/cached_attention.h"
#include "model/decoder.h"

namespace oscar {

// Gives a prefill pass on to `inner`, and appends the first `tokens` keys and values of each layer to the cache as
// sequence 0. Calls hold one sequence from position 0 on. inner and cache must outlive the object.
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

// Whether keys and values are all that a token leaves behind in the model: no recurrent states, no layers whose cache
// is their own.
bool can_fill_cache(const ModelConfig& model);

// Hidden states after the final norm of tokens [from, T) of a sequence, one after another through the cache, which
// holds the first `from` of them as sequence 0 and is released: [T - from, hidden].
at::Tensor decode_tail(Decoder& decoder, const std::vector<std::int32_t>& ids, std::int64_t from, PagedAttention& cache,
                       const std::function<void(std::int64_t)>& progress);

}  // namespace oscar
