// The interface between the decoder and code that observes or replaces attention. Calibration observes it; verify
// replaces it with a quantized cache. The decoder has one forward path and calls exactly one Attention object.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oscar {

// New tokens of one or more sequences, packed one after another. T = sum of lengths.
struct SequenceBatch {
  std::vector<std::int64_t> ids;      // [sequences] identifies a sequence across calls (a cache slot)
  std::vector<std::int64_t> lengths;  // [sequences] new tokens per sequence
  std::vector<std::int64_t> starts;   // [sequences] position of the first new token
  std::int64_t tokens() const;
};

class RecurrentStates;

// The attention input of one layer: q and k after norm and RoPE, v as projected (with bias). A = T unless `asked` is
// set.
struct AttentionInput {
  std::int64_t layer = 0;  // index among the layers with a KV cache; ModelConfig::kv_layer() gives the layer's number
  const SequenceBatch* batch = nullptr;
  at::Tensor q;  // [A, Hq, d]
  at::Tensor k;  // [T, Hkv, d]
  at::Tensor v;  // [T, Hkv, d]
  // Latent attention, whose v is k: channels after RoPE, [A, Hq, R] and [T, 1, R]. The softmax is over (q kT + q_rope
  // k_ropeT) scale. Undefined for other models.
  at::Tensor q_rope, k_rope;
  double scale = 1.0;               // softmax scale, usually d^-1/2
  std::int64_t sliding_window = 0;  // 0: none; w: query i sees keys j with i - j < w
  std::int64_t chunk = 0;           // 0: none; c: query i sees keys in its own chunk of c tokens; no window is combined
                                    // with it
  double soft_cap = 0.0;            // 0: none
  at::Tensor sinks;                 // undefined, or [Hq] logits added to the softmax denominator
  // 0: k and v belong to this layer. Otherwise the number of the layer that reads the cache of `layer` as its own; k
  // and v are then repeated. They add no tokens to the cache, and observers of a layer do not see them.
  std::int64_t reader = 0;
  at::Tensor asked;  // undefined, or [A] int64 on the CPU, ascending: the tokens that have a query in q

  bool sees_all() const { return sliding_window == 0 && chunk == 0; }
  std::int64_t first_key(std::int64_t i) const {  // the first key that the query at position i sees
    if (chunk > 0) return i / chunk * chunk;
    return sliding_window > 0 && i >= sliding_window ? i - sliding_window + 1 : 0;
  }
};

// Rows with their RoPE channels after them, in the type of the rows; `rows` where there are none. For products in which
// both sides have them.
at::Tensor with_rope(const at::Tensor& rows, const at::Tensor& rope);
// The same for a call: its q and k are wide, and v are the first channels of k.
AttentionInput with_rope(const AttentionInput& input);
// The call with the keys and values of the tokens [first, first + count).
AttentionInput with_tokens(const AttentionInput& input, std::int64_t first, std::int64_t count);

// The queries of all tokens, with zeros for tokens that were not requested. For implementations that cannot compute a
// subset.
AttentionInput with_all_queries(const AttentionInput& input);
// For implementations that cannot compute a subset of the queries: std::invalid_argument if one is requested.
void require_all_queries(const AttentionInput& input, const char* who);

class Attention {
 public:
  virtual ~Attention() = default;
  // O = softmax(q kT scale + mask) v per query head, before W_O: [A, Hq, d], same dtype as q. Only classes that say so
  // support a subset of the queries; the others throw std::invalid_argument.
  virtual at::Tensor attend(const AttentionInput& input) = 0;
  // Called once after each attend(); the tensors are valid only during the call.
  // residual: the residual stream [T, hidden] with the attention branch added, after that branch's own norm if the
  // family has one. The MLP is not yet added, unless both are added together. The next norm normalizes this stream.
  // branch: the attention branch [T, hidden] before its own norm; undefined if the family has no such norm.
  virtual void added(const AttentionInput& /*input*/, const at::Tensor& /*residual*/, const at::Tensor& /*branch*/) {}
  // States of layers without a KV cache. They persist between calls, like this object's cache. Null: nothing persists,
  // and every sequence must be complete (starts at 0).
  virtual RecurrentStates* states() { return nullptr; }
};

// Causal attention over the new tokens only (starts must be 0): the BF16/FP32 reference for prefill.
class FullAttention : public Attention {
 public:
  at::Tensor attend(const AttentionInput& input) override;
};

// Calls `inner`, then passes input and output to observe(). For calibration.
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
