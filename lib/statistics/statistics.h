// Second moments of one model on one prompt set: oscar-collect writes, merges and shows them, and oscar-fit reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "layout/left_out.h"

namespace oscar {

// All FP64 on the CPU. They are sums (not means), so that parts merge exactly. Symbols: docs/format-statistics.md. Row
// vectors.
struct LayerMoments {
  at::Tensor q_gram;       // [Hkv, d, d]  sum over tokens and the group's query heads of q^T q
  at::Tensor k_gram;       // [Hkv, d, d]  sum k^T k
  at::Tensor k_sum;        // [Hkv, d]
  at::Tensor v_gram;       // [Hkv, d, d]
  at::Tensor v_sum;        // [Hkv, d]
  at::Tensor o_gram;       // [Hkv, d, d]  sum over tokens and the group's query heads of o^T o = V^T S^T S V (exact)
  at::Tensor energy_gram;  // [Hkv, d, d]  published proxy: sum_t w_t v_t^T v_t, w_t = k_t C_Q k_t^T, mean 1 per head
  at::Tensor wo_gram;      // [Hkv, d, d]  sum over the group's query heads of W^T W, W the head's columns of W_O
  // Row sample for clip search, FP32: a deterministic bottom-k sample of tokens. R rows.
  at::Tensor rows_q;                        // [R, Hq, d]
  at::Tensor rows_k;                        // [R, Hkv, d]
  at::Tensor rows_v;                        // [R, Hkv, d]
  std::vector<std::uint64_t> row_priority;  // [R] ascending; the key of the bottom-k sample, so samples merge too
  std::vector<std::int64_t> row_position;   // [R] position in its sequence (the sink window is never quantized)
  // Metrics of pairs outside the BF16 windows (optional, all or none). They cover the keys that the cache quantizes:
  // sink <= j <= i - recent for query i. w_ij = p_ij^2 |W_O (v_j - o_i)|^2, p the softmax weights, |W_O x|^2 with the
  // columns of the query head.
  at::Tensor far_q_gram;      // [Hkv, d, d]  sum over such queries and the group of (sum_j w_ij) q_i^T q_i scale^2
  at::Tensor far_v_weight;    // [Hkv, d, d]  sum over such queries and the group of (sum_j p_ij^2) W_O^T W_O
  at::Tensor far_pre_q_gram;  // [Hkv, d, d]  as far_q_gram, with the queries before RoPE
  at::Tensor far_count;       // [2] queries with a key outside the windows; query-key pairs outside the windows
  // Rows before RoPE: the rows that attention saw with RoPE inverted (unrotation.h).
  at::Tensor pre_q_gram;  // [Hkv, d, d]  as q_gram
  at::Tensor pre_k_gram;  // [Hkv, d, d]  as k_gram
  at::Tensor pre_k_sum;   // [Hkv, d]
  // [2, 2] the residual stream with the attention output added, before the MLP. Rows: all tokens; tokens in position
  // sink + recent or later (zeros if not collected). Columns: sum of |x|^2; tokens.
  at::Tensor attention_residual;
  // [2, 2] (optional; models with a norm of the attention branch) how much of the residual stream an error in the
  // branch becomes. As attention_residual, but with the sum of 1 / ((mean y^2) |x|^2) instead of |x|^2; y is the branch
  // before its norm. For such models wo_gram and the metrics of pairs outside the windows use W_O times the gain of the
  // norm.
  at::Tensor attention_gain;
  at::Tensor residual_energy;  // [2] sum over tokens of |x|^2 of the residual stream after the layer; tokens
};

inline constexpr std::int64_t kStatisticsVersion = 3;

struct Statistics {
  std::string model_fingerprint, model_name, architecture;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0, hidden = 0;
  std::int64_t tokens = 0;        // sum over prompts; 0: a shard without a sequence, whose layers have no tensors
  at::Tensor embedding_energy;    // [2] as residual_energy, for the residual stream that enters layer 0
  at::Tensor rope_frequency;      // [P] FP64 radians per token; rotates the pairs (i, i + P); channels from 2 P on stay
  double rope_scale = 1.0;        // RoPE multiplies the rotated channels of q and k by it (yarn, longrope)
  std::int64_t rope_reach = 0;    // longest context for which RoPE has these frequencies (longrope, dynamic); 0: any
  double attention_scale = 0.0;   // factor of q k^T in the softmax; 0: unknown
  std::int64_t max_position = 0;  // context length that the model was made for; 0: unknown
  std::int64_t rope_dim = 0;  // latent attention, whose values are its keys: channels with RoPE beside them; 0: others
  Json metadata;              // all other recorded facts: schemas/statistics.schema.json
  std::vector<LayerMoments> layers;    // layers that hold a KV cache
  std::vector<LeftOutLayer> left_out;  // the other layers, ascending

  std::int64_t model_layers() const { return static_cast<std::int64_t>(layers.size() + left_out.size()); }
  std::int64_t number(std::size_t place) const;  // the model's number of layers[place]
};

// Writes identical bytes for equal content. Optional parts (rows, residual and embedding energy) may be undefined.
// durable: as AtomicFile::commit().
void save_statistics(const Statistics& statistics, const fs::path& path, bool durable = true);
// InputError on any fault, and for a shard without tokens, which cannot be used; NumericalError for NaN or infinity.
// Row samples stay in the mapped file: read them, but do not change them.
Statistics load_statistics(const fs::path& path);
Statistics load_part(const fs::path& path);  // the same for merge and show, which accept a shard without tokens

// The largest distance in tokens between a query and an earlier key in any sequence; 0: the statistics do not record
// it.
std::int64_t longest_distance(const Statistics& statistics);

// Mean of the keys of each head before RoPE, [Hkv, d] FP64. InputError if the statistics lack the sums.
at::Tensor pre_rope_key_mean(const Statistics& statistics, std::size_t layer);

// Checks shapes, finiteness, symmetry, and sums that contradict each other or the token count. InputError
// (NumericalError for NaN or infinity) naming `where`, the tensor and the fault. load_statistics() calls it.
void check_statistics(const Statistics& statistics, const std::string& where);

// Differences that merge_statistics() accepts because the caller allows them.
struct MergeOptions {
  bool same_prompts = false;       // two parts of one prompt set
  bool mixed_dtypes = false;       // parts collected in different precisions: sums of differently rounded activations
  bool missing_far_pairs = false;  // some parts have no metrics of pairs outside the windows
};

// Sum of parts of the same model. InputError naming the difference otherwise, or for a difference that `options` does
// not allow. Everything equals one run over all prompts up to FP64 rounding, except energy_gram, whose weights were
// normalized within each part. Row samples merge into the sample of all tokens.
Statistics merge_statistics(const std::vector<Statistics>& parts, const MergeOptions& options = {});

}  // namespace oscar
