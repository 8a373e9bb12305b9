// The seam between the decoder and everything that looks at or replaces attention: calibration observes it, verify
// replaces it with a quantized cache. The decoder has one forward path and calls exactly one Attention object.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oscar {

// New tokens of one or more sequences, packed one after another. T = sum of lengths.
struct SequenceBatch {
  std::vector<std::int64_t> ids;      // [sequences] names a sequence across calls (a cache slot)
  std::vector<std::int64_t> lengths;  // [sequences] new tokens of each
  std::vector<std::int64_t> starts;   // [sequences] position of the first new token of each
  std::int64_t tokens() const;
};

class RecurrentStates;

// One layer's attention input: post-norm, post-RoPE q and k; v as projected (with bias). A = T but with `asked`.
struct AttentionInput {
  std::int64_t layer = 0;  // its place among the layers that hold a KV cache: ModelConfig::kv_layer() tells its number
  const SequenceBatch* batch = nullptr;
  at::Tensor q;                     // [A, Hq, d]
  at::Tensor k;                     // [T, Hkv, d]
  at::Tensor v;                     // [T, Hkv, d]
  double scale = 1.0;               // softmax scale, usually d^-1/2
  std::int64_t sliding_window = 0;  // 0: none; w: query i sees keys j with i - j < w
  std::int64_t chunk = 0;           // 0: none; c: query i sees keys of its own chunk of c tokens; no window beside it
  double soft_cap = 0.0;            // 0: none
  at::Tensor sinks;                 // undefined, or [Hq] logits that join the softmax denominator
  // 0: k and v are the layer's own. Else the number of a layer that reads, as if they were its own, what `layer`
  // caches: the same k and v once more. They are no new tokens of the cache, and observers of a layer do not see them.
  std::int64_t reader = 0;
  at::Tensor asked;  // undefined, or [A] int64 on the CPU, ascending: the tokens that q is of

  bool sees_all() const { return sliding_window == 0 && chunk == 0; }
  std::int64_t first_key(std::int64_t i) const {  // that the query at position i sees
    if (chunk > 0) return i / chunk * chunk;
    return sliding_window > 0 && i >= sliding_window ? i - sliding_window + 1 : 0;
  }
};

// The queries of all tokens, zeros for those that were not asked for: for a class that answers all or none.
AttentionInput with_all_queries(const AttentionInput& input);
// For a class that does not answer some alone: std::invalid_argument.
void require_all_queries(const AttentionInput& input, const char* who);

class Attention {
 public:
  virtual ~Attention() = default;
  // O = softmax(q kT scale + mask) v per query head, before W_O: [A, Hq, d], same dtype as q. Queries of some tokens
  // alone are answered where a class says so; std::invalid_argument from the others.
  virtual at::Tensor attend(const AttentionInput& input) = 0;
  // The residual stream [T, hidden] with the attention branch added (after the branch's own norm where a family has
  // one) and the MLP not yet, unless the two are added together: what the next norm divides by. Called once after each
  // attend(); the tensors are only valid during the call. branch: the attention branch [T, hidden] before its own norm;
  // undefined where the family has none there.
  virtual void added(const AttentionInput& /*input*/, const at::Tensor& /*residual*/, const at::Tensor& /*branch*/) {}
  // States of layers without a KV cache, kept from call to call as this object keeps its cache; null: sequences come
  // whole (starts 0), and nothing is kept.
  virtual RecurrentStates* states() { return nullptr; }
};

// Causal attention over the new tokens alone (starts must be 0): the BF16/FP32 reference of prefill.
class FullAttention : public Attention {
 public:
  at::Tensor attend(const AttentionInput& input) override;
};

// Calls `inner`, then hands input and output to observe(). For calibration.
class AttentionObserver : public Attention {
 public:
  explicit AttentionObserver(Attention& inner) : inner_(inner) {}
  at::Tensor attend(const AttentionInput& input) final;
  RecurrentStates* states() final { return inner_.states(); }

 protected:
  virtual void observe(const AttentionInput& input, const at::Tensor& output) = 0;

 private:
  Attention& inner_;
};

}  // namespace oscar
