// The two ways a decoder runs on a quantised KV cache. Both store rotated K and V: BF16 in the sink and recent tiers,
// codes in the body; both quantise the BF16-rounded rotated row, so codes agree bit for bit. Method bf16 keeps all rows
// in BF16: run through the same path it is the baseline. Queries, softmax and sums are FP32. The method must outlive
// the object.
#pragma once

#include <cstdint>
#include <memory>

#include "model/attention.h"
#include "runtime/method.h"

namespace oscar {

class PagedCache;

// Prefill path, simulated: all tokens of a sequence in one call (starts 0); query i sees quantised keys and values
// for [sink, quantised_end(i + 1)) and BF16 ones elsewhere. Exactly what token-by-token decode gives, up to rounding.
class SimulatedPrefillAttention : public Attention {
 public:
  explicit SimulatedPrefillAttention(const KvMethod& method);
  at::Tensor attend(const AttentionInput& input) override;

 private:
  const KvMethod& method_;
};

// Decode path: the paged three-tier cache. Any batch of ragged sequences; each call appends the new tokens of each
// sequence and attends, token by token.
class PagedAttention : public Attention {
 public:
  PagedAttention(const KvMethod& method, const ModelConfig& model);
  ~PagedAttention() override;
  at::Tensor attend(const AttentionInput& input) override;
  std::uint64_t allocated_bytes() const;  // pages and windows physically held, all layers and sequences
  void release(std::int64_t sequence_id);
  const PagedCache& cache() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
