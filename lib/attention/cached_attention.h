// The two ways to run a decoder on a quantized KV cache. Both store rotated K and V: BF16 in the sink and recent
// windows, codes between them. Both quantize the row after rotation and rounding to BF16, so codes agree bit for bit.
// Method bf16 keeps all rows in BF16; through the same path it is the baseline. Queries, softmax and sums are FP32.
// Method and model must outlive the object.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/kv_method.h"
#include "layout/side.h"
#include "model/attention.h"
#include "model/recurrent_states.h"

namespace oscar {

class PagedBackend;
class Timeline;

inline constexpr const char* kCodingPhase = "coding";

// Simulated prefill: all tokens of a sequence in one call (starts 0). Query i sees quantized keys and values for [sink,
// quantized_end(i + 1)) and BF16 rows elsewhere. Equals token-by-token decode up to rounding.
class SimulatedPrefillAttention : public Attention {
 public:
  // timeline: gets the phase kCodingPhase while rows are coded and decoded; null: nothing is measured.
  explicit SimulatedPrefillAttention(const KvMethod& method, Timeline* timeline = nullptr);
  at::Tensor attend(const AttentionInput& input) override;

 private:
  const KvMethod& method_;
  Timeline* timeline_;
};

// Keys or values of a sequence's coded tokens in one layer, copied to main memory.
struct StoredPages {
  std::int64_t tokens = 0;          // number of coded tokens, from the end of the sink on
  std::vector<std::uint8_t> pages;  // [ceil(tokens / page tokens), CachePages::bytes()]
};

// Decode path: the paged three-tier cache. It takes any batch of ragged sequences. Each call appends the new tokens of
// each sequence and attends, token by token. The cache and the attention are on `device`, or on the CPU where
// decode_note() says so. Kernels of a GPU take BF16 queries, the CPU takes FP32. Cached bytes are the same for the same
// keys and values.
class PagedAttention : public Attention {
 public:
  PagedAttention(const KvMethod& method, const ModelConfig& model, at::Device device = at::kCPU);
  ~PagedAttention() override;
  // Call before the first token: announces the expected number and length of sequences, so that the fast backend
  // allocates its memory once. A pool that grows step by step leaves its old blocks to LibTorch's allocator, in many
  // sizes.
  void expect(std::int64_t sequences, std::int64_t tokens);
  at::Tensor attend(const AttentionInput& input) override;
  RecurrentStates* states() override { return &states_; }
  void append(const AttentionInput& input);  // fills the cache without attending; reads only k and v
  std::uint64_t allocated_bytes() const;     // memory held by pages and windows, all layers and sequences
  void release(std::int64_t sequence_id);
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence_id) const;  // 0 for an unknown id
  std::int64_t pages_in_use() const;
  // If keys and values share pages, both sides give the same bytes. Empty for an unknown id.
  StoredPages stored(std::int64_t layer, std::int64_t sequence_id, Side side = Side::kKey) const;

 private:
  PagedBackend& backend_of(const AttentionInput& input);
  std::function<std::unique_ptr<PagedBackend>()> make_;
  std::unique_ptr<PagedBackend> backend_;
  // For layers that read another layer's cache: copies with the same bytes, so that each attends as its tokens arrive.
  // A serving cache holds them once, and the numbers above count them once.
  std::map<std::int64_t, std::unique_ptr<PagedBackend>> readers_;
  RecurrentStates states_;
};

// A note for people with the reason, if a GPU leaves the cache and its attention to the CPU; empty otherwise.
std::string decode_note(const KvMethod& method, const ModelConfig& model, at::Device device);

}  // namespace oscar
