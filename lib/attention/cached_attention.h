// The two ways a decoder runs on a quantized KV cache. Both store rotated K and V: BF16 in the sink and recent tiers,
// codes in the body; both quantize the BF16-rounded rotated row, so codes agree bit for bit. Method bf16 keeps all rows
// in BF16: run through the same path it is the baseline. Queries, softmax and sums are FP32. Method and model outlive
// the object.
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

// Prefill path, simulated: all tokens of a sequence in one call (starts 0); query i sees quantized keys and values
// for [sink, quantized_end(i + 1)) and BF16 ones elsewhere. Exactly what token-by-token decode gives, up to rounding.
class SimulatedPrefillAttention : public Attention {
 public:
  // timeline: has the phase kCodingPhase while rows are coded and decoded; null: nothing is measured.
  explicit SimulatedPrefillAttention(const KvMethod& method, Timeline* timeline = nullptr);
  at::Tensor attend(const AttentionInput& input) override;

 private:
  const KvMethod& method_;
  Timeline* timeline_;
};

// Keys or values of the coded tokens of one sequence in one layer, copied to main memory.
struct StoredPages {
  std::int64_t tokens = 0;          // from the end of the sink on
  std::vector<std::uint8_t> pages;  // [ceil(tokens / page tokens), CachePages::bytes()]
};

// Decode path: the paged three-tier cache. Any batch of ragged sequences; each call appends the new tokens of each
// sequence and attends, token by token. The cache lives on `device` and so does the attention: on a GPU queries enter
// the fast kernels in BF16 (on the CPU, and in the general kernel, in FP32); cached bytes are the same for the same
// keys and values.
class PagedAttention : public Attention {
 public:
  // EnvironmentError when the kernels of the device cannot hold the cache of the method: see decode_unsupported().
  PagedAttention(const KvMethod& method, const ModelConfig& model, at::Device device = at::kCPU);
  ~PagedAttention() override;
  // Before the first token: so many sequences of about so many tokens will come, so that the fast backend takes its
  // memory once. A pool that grows step by step leaves what it had to LibTorch's allocator, in many sizes.
  void expect(std::int64_t sequences, std::int64_t tokens);
  at::Tensor attend(const AttentionInput& input) override;
  RecurrentStates* states() override { return &states_; }
  void append(const AttentionInput& input);  // fills the cache without attending; reads k and v alone
  std::uint64_t allocated_bytes() const;     // pages and windows physically held, all layers and sequences
  void release(std::int64_t sequence_id);
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence_id) const;  // 0 for an unknown id
  std::int64_t pages_in_use() const;
  // Where keys and values share pages, both sides give the same bytes. Nothing for an unknown id.
  StoredPages stored(std::int64_t layer, std::int64_t sequence_id, Side side = Side::kKey) const;

 private:
  PagedBackend& backend_of(const AttentionInput& input);
  std::function<std::unique_ptr<PagedBackend>()> make_;
  std::unique_ptr<PagedBackend> backend_;
  // Of layers that read what another one caches: copies with the same bytes, so that each attends as its tokens arrive.
  // A cache that serves holds them once, and so count the numbers above.
  std::map<std::int64_t, std::unique_ptr<PagedBackend>> readers_;
  RecurrentStates states_;
};

// Why the decode path cannot run this method on the device: a clause without a full stop; empty when it can.
std::string decode_fault(const KvMethod& method, const ModelConfig& model, at::Device device);
// The same as one sentence with what to do in oscar-verify.
std::string decode_unsupported(const KvMethod& method, const ModelConfig& model, at::Device device);
// A note for people where the general kernel of a GPU runs, with the reason; empty elsewhere.
std::string decode_note(const KvMethod& method, const ModelConfig& model, at::Device device);

}  // namespace oscar
