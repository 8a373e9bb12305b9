// Second moments of one model on one prompt set: what oscar-collect writes, merges and shows, and oscar-fit reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace oscar {

// All FP64 on the CPU, sums (not means) so that parts merge exactly. Letters: docs/format-statistics.md. Row vectors.
struct LayerMoments {
  at::Tensor q_gram;       // [Hkv, d, d]  sum over tokens and the group's query heads of q^T q
  at::Tensor k_gram;       // [Hkv, d, d]  sum k^T k
  at::Tensor k_sum;        // [Hkv, d]
  at::Tensor v_gram;       // [Hkv, d, d]
  at::Tensor v_sum;        // [Hkv, d]
  at::Tensor o_gram;       // [Hkv, d, d]  sum over tokens and the group's query heads of o^T o = V^T S^T S V (exact)
  at::Tensor energy_gram;  // [Hkv, d, d]  published proxy: sum_t w_t v_t^T v_t, w_t = k_t C_Q k_t^T, mean 1 per head
  at::Tensor wo_gram;      // [Hkv, d, d]  sum over the group's query heads of W_O block: W^T W in head coordinates
  // Row sample for clip search, FP32: a deterministic bottom-k sample of tokens. R rows.
  at::Tensor rows_q;                        // [R, Hq, d]
  at::Tensor rows_k;                        // [R, Hkv, d]
  at::Tensor rows_v;                        // [R, Hkv, d]
  std::vector<std::uint64_t> row_priority;  // [R] ascending; the key of the bottom-k sample, so samples merge too
  std::vector<std::int64_t> row_position;   // [R] position in its sequence (the sink window is never quantized)
  // Far pairs (optional, all or none): what the quantized tier will serve, keys sink <= j <= i - recent of query i.
  // w_ij = p_ij^2 |W_O (v_j - o_i)|^2, p the softmax weights, |W_O x|^2 of the query head's own columns.
  at::Tensor far_q_gram;      // [Hkv, d, d]  sum over far queries and the group of (sum_j w_ij) q_i^T q_i scale^2
  at::Tensor far_v_weight;    // [Hkv, d, d]  sum over far queries and the group of (sum_j p_ij^2) W_O^T W_O
  at::Tensor far_pre_q_gram;  // [Hkv, d, d]  as far_q_gram, of the queries before RoPE
  at::Tensor far_count;       // [2] queries with a far key; pairs of a query and a far key
  // Rows before RoPE: what attention saw, turned back to position 0 (unrotation.h).
  at::Tensor pre_q_gram;  // [Hkv, d, d]  as q_gram
  at::Tensor pre_k_gram;  // [Hkv, d, d]  as k_gram
  at::Tensor pre_k_sum;   // [Hkv, d]
  // [2, 2] the residual stream with the attention output added, before the MLP. Rows: all tokens; tokens in position
  // sink + recent of the far pairs or later (zeros where they were not collected). Columns: sum of |x|^2; tokens.
  at::Tensor attention_residual;
  // [2, 2] (optional; models with a norm of the attention branch) how much of the residual stream an error in the
  // branch becomes: as attention_residual, with the sum of 1 / ((mean y^2) |x|^2), y the branch before its norm, in
  // place of that of |x|^2. wo_gram and the far-pair metrics of such models are of W_O times the gain of the norm.
  at::Tensor attention_gain;
  at::Tensor residual_energy;  // [2] sum over tokens of |x|^2 of the residual stream after the layer; tokens
};

// A layer of the model that is not among those below, and why: "gated delta net". `reads`: the layer whose keys and
// values it attends to, where it has none of its own.
struct LeftOutLayer {
  std::int64_t layer = 0;
  std::string reason;
  std::optional<std::int64_t> reads;
};

inline constexpr std::int64_t kStatisticsVersion = 2;

struct Statistics {
  std::string model_fingerprint, model_name, architecture;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0, hidden = 0;
  std::int64_t tokens = 0;      // summed over prompts; 0: a shard that got no sequence, whose layers have no tensors
  at::Tensor embedding_energy;  // [2] as residual_energy, of the residual stream that enters layer 0
  at::Tensor rope_frequency;    // [P] FP64 radians per token; channel i < P turns with i + P, channels from 2 P on stay
  double rope_scale = 1.0;      // what RoPE multiplies turning channels of q and k by (yarn, longrope)
  std::int64_t rope_reach = 0;  // longest context that RoPE has these frequencies for (longrope, dynamic); 0: any
  double attention_scale = 0.0;        // of q k^T in the softmax; 0: unknown
  std::int64_t max_position = 0;       // that the model was made for; 0: unknown
  Json metadata;                       // everything else that is recorded: schemas/statistics.schema.json
  std::vector<LayerMoments> layers;    // of those that hold a KV cache
  std::vector<LeftOutLayer> left_out;  // the others, ascending

  std::int64_t model_layers() const { return static_cast<std::int64_t>(layers.size() + left_out.size()); }
  std::int64_t number(std::size_t place) const;  // that the model gives to layers[place]
};

// Byte-identical for equal content. Optional parts (rows, residual and embedding energy) may be left undefined.
// durable: as AtomicFile::commit().
void save_statistics(const Statistics& statistics, const fs::path& path, bool durable = true);
// InputError on any fault, and for a shard without tokens, of which nothing can be made; NumericalError for NaN or
// infinity.
// Row samples stay in the file, which is mapped: read them and change nothing in them.
Statistics load_statistics(const fs::path& path);
Statistics load_part(const fs::path& path);  // the same for merge and show, which take a shard without tokens, too

// The most tokens that a key was before its query in any sequence of the statistics; 0: they do not say it.
std::int64_t longest_distance(const Statistics& statistics);

// Shapes, finiteness, symmetry, and sums that contradict each other or the token count. InputError (NumericalError for
// NaN or infinity) naming `where`, the tensor and the fault. load_statistics() calls it.
void check_statistics(const Statistics& statistics, const std::string& where);

// What merge_statistics() lets pass because it was told to.
struct MergeOptions {
  bool same_prompts = false;       // two parts of one prompt set
  bool mixed_dtypes = false;       // parts collected in other precisions: sums of differently rounded activations
  bool missing_far_pairs = false;  // parts without far-pair metrics beside parts with them
};

// Sum of parts of the same model; InputError naming the difference otherwise, or for what `options` does not allow.
// Everything equals one run over all prompts up to FP64 rounding, except energy_gram:
// its weights were normalized within each part. Row samples merge into the sample of the whole.
// layers: those of the result, where merge_layer() has made them already; those of the parts are not looked at then.
Statistics merge_statistics(const std::vector<Statistics>& parts, const MergeOptions& options = {},
                            std::vector<LayerMoments> layers = {});

}  // namespace oscar
