// Attention of one sequence in which one side of one layer is quantized with several width profiles at once. Measured
// curves (curve_passes.h) run it in the quantized layer.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "attention/prefill_core.h"
#include "bundle/bundle.h"
#include "cache/kv_method.h"
#include "model/attention.h"
#include "transform/profile_allocation.h"

namespace oscar {

// Keys or values [T, Hkv, d] of an exact cache: [Hkv, T, d] FP32, rounded to BF16.
CachedRows exact_rows(const at::Tensor& rows);

// The exact cache: keys and values rounded to BF16, nothing quantized. Supports the queries of only some tokens. On the
// CPU it uses attention/fast_prefill.h if that supports the layer, elsewhere FullAttention.
class ExactCacheAttention : public Attention {
 public:
  at::Tensor attend(const AttentionInput& input) override;

 private:
  FullAttention full_;
};

// One cache per width, in which every block has that width. Profiles are assembled from their rows, since blocks are
// coded independently.
// 1, 2 and 4 bits; with latents also blocks of 4 bits that 1, 2 and 4 bits refine.
using WidthMethods = std::vector<KvMethod>;
WidthMethods make_width_methods(const Bundle& bundle, const ModelConfig& model, const CacheWindows& windows);

struct WidthRows;  // one side of a sequence, coded with each width

// The batch must be P copies of one sequence from position 0 on, or of several sequences of one length, one after
// another; P = profiles (+ 1 with `exact`). Copy p gets the outputs of profile p; with `exact` the last copy gets the
// outputs for rows that are transformed but not coded. Queries, transforms and codes of each width are computed once.
// Value profiles also share the softmax, because outputs are linear in the values. Supports the queries of only some
// tokens, the same ones in each copy.
class ProfileAttention : public Attention {
 public:
  ProfileAttention(const WidthMethods& methods, Side side, const std::vector<Widths>& profiles, bool exact);
  at::Tensor attend(const AttentionInput& input) override;

 private:
  at::Tensor attend_one(const AttentionInput& input, const WidthRows& rows) const;
  at::Tensor attend_keys(const AttentionInput& input, const WidthRows& rows) const;
  at::Tensor attend_values(const AttentionInput& input, const WidthRows& rows) const;
  std::int64_t copies() const { return static_cast<std::int64_t>(profiles_.size()) + (exact_ ? 1 : 0); }

  const WidthMethods& methods_;
  Side side_;
  const std::vector<Widths>& profiles_;
  bool exact_;
};

// The exact cache for copies of sequences that differ only from some position on. The rows before it have the same keys
// and values in all copies, so they are in the batch once.

// The shared rows [0, start) of each sequence, and then the rows [start, tokens) of each copy of the first one, of the
// second one, and so on.
SequenceBatch shared_start_batch(std::int64_t start, std::int64_t tokens, std::int64_t copies,
                                 std::int64_t sequences = 1);

// Keys and values rounded to BF16, nothing quantized, for a shared_start_batch(). Needs `asked`, on any device: rows of
// the copies. With fused_prefill_runs() they must be the same of each copy (std::invalid_argument).
class SharedStartAttention : public Attention {
 public:
  at::Tensor attend(const AttentionInput& input) override;

 private:
  ExactCacheAttention exact_;
};

}  // namespace oscar
