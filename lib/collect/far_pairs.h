// Metrics of query-key pairs outside the BF16 windows for one layer: how far an error in a key or a value moves the
// layer's output. They sum over the pairs (query i, key j), sink <= j <= i - recent, whose keys a cache quantizes.
//   A key's logit moves the output by p_ij W_O (v_j - o_i), so w_ij = p_ij^2 |W_O (v_j - o_i)|^2. An error e in key j
//   moves the logit by scale q_i e, so keys weigh sum_ij w_ij q_i^T q_i scale^2.
//   An error e in value j moves the output by p_ij W_O e, so values weigh sum_ij p_ij^2 W_O^T W_O.
// The sums are streamed in blocks of queries like attention itself, O(T^2) for each sequence; nothing of size [T, T] is
// held. On a GPU one kernel does the work if it is built for the layer (device_sums.h). On the CPU, sequences of
// more queries than FarPairs::cpu_queries give every n-th of them; each stands for the n - 1 after it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "collect/unrotation.h"
#include "model/attention.h"
#include "statistics/statistics.h"

namespace oscar {

struct FarSums;  // device_sums.h

inline constexpr std::int64_t kFarScores = std::int64_t{1} << 25;  // FP32 scores that a GPU holds at once

struct FarPairs {
  std::int64_t sink = 64, recent = 256;
  bool enabled = true;
  std::int64_t cpu_queries = 2048;  // of a sequence, about

  // n: every n-th query of a sequence counts. Odd, so that it follows no rhythm of the text.
  std::int64_t query_step(std::int64_t length, at::Device device) const;
};

class FarPairAccumulator {
 public:
  FarPairAccumulator(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim, const FarPairs& pairs,
                     at::Device device);

  void begin_layer(const at::Tensor& o_weight);  // [hidden, Hq d]
  // Whole sequences (starts 0). output [T, Hq, d]: the attention output before W_O. rows: rotations of the input's
  // batch.
  void add(const AttentionInput& input, const at::Tensor& output, const Unrotation::Rows& rows);
  // far_q_gram, far_pre_q_gram, far_v_weight, far_count on the device, grams made exactly symmetric.
  void finish(LayerMoments& out) const;

 private:
  // Values in coordinates in which |x| is |W_O x| of the query head, and their mean. Values lose their mean, which no
  // distance depends on. [Hkv, g, T, d], [Hkv, g, 1, d].
  struct Values {
    at::Tensor u, center;
  };
  // Some queries of a sequence, one after another.
  struct Queries {
    std::int64_t offset, first, count;  // first token of the sequence in the batch; position of the first query
    std::int64_t step = 1;              // between queries
    double weight = 1.0;                // queries for which each of them stands

    std::int64_t reach() const { return first + (count - 1) * step + 1; }  // position after the last query
    at::Tensor of(const at::Tensor& rows) const { return rows.slice(0, offset + first, offset + reach(), step); }
  };
  void add_sequence(const AttentionInput& input, const at::Tensor& output, const Unrotation::Rows& rows,
                    std::int64_t offset, std::int64_t length);
  void add_sequence_on_device(const AttentionInput& input, const at::Tensor& output, const Unrotation::Rows& rows,
                              const Values& values, std::int64_t offset, std::int64_t length);
  at::Tensor targets(const at::Tensor& output, const Queries& at) const;
  void add_queries_on_device(const AttentionInput& input, const Unrotation::Rows& rows, const Queries& at,
                             const FarSums& sums);
  // moved, seen: [Hkv, g, C].
  void add_key_weights(const AttentionInput& input, const Unrotation::Rows& rows, const Queries& at,
                       const at::Tensor& moved);
  void add_value_weights(const AttentionInput& input, const Queries& at, const at::Tensor& seen);
  // Attention weights from logits [Hkv, g, C, columns], which it overwrites; keys from token `begin` on.
  static at::Tensor weights_of(at::Tensor logits, const AttentionInput& input, const Queries& at, std::int64_t begin);
  void square_far_pairs(const at::Tensor& p, const Queries& at, std::int64_t begin) const;

  std::int64_t query_heads_, kv_heads_, head_dim_;
  FarPairs pairs_;
  at::Device device_;
  at::Tensor head_gram_;                                 // [Hq, d, d] FP64: W^T W of each query head
  at::Tensor factor_;                                    // [Hq, d, d] FP32: F F^T = W^T W, so |W x| = |x F|
  at::Tensor q_grams_, q_gram_, pre_q_gram_, v_weight_;  // the first holds the next two
  double queries_ = 0.0, pair_count_ = 0.0;
};

}  // namespace oscar
