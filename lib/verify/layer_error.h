// Tensor-level errors of one method in one layer, relative to exact attention on the same inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/prefill_core.h"
#include "cache/kv_method.h"
#include "model/attention.h"
#include "report/report.h"

namespace oscar {

// Sums over sequences for one KV head and its query heads, in FP64.
struct HeadErrorSums {
  double logit_error = 0, logit_energy = 0;    // squared, without each query's mean over its quantized keys
  double logit_cross = 0, stored_energy = 0;   // exact x stored, stored^2, without means
  double output_error = 0, output_energy = 0;  // squared norms
  double divergence = 0;                       // KL(p || p') of the attention weights
  double sink_mass = 0, recent_mass = 0;       // what p' lacks relative to p on these tokens
  double queries = 0;                          // count for divergence and masses

  void add(const HeadErrorSums& other);
  HeadError result(std::int64_t head) const;
};

struct LayerErrorSums {
  std::vector<HeadErrorSums> heads;                  // [Hkv]; grows on first use
  double projected_error = 0, projected_energy = 0;  // squared norms after W_O, over all heads

  HeadErrorSums total() const;
  LayerError result(std::int64_t layer) const;
};

// Attention weights of up to 64 evenly spaced queries of the sequence: q k^T against q khat^T. Logit errors and
// correlation cover a query's quantized keys, without the query's mean. Softmax ignores this mean (a centered cache
// shifts all logits of a query equally). The exact results are kept for methods with the same windows.
class LayerErrors {
 public:
  // tiers: which tokens form the sink and recent windows, equal for every method. input: must outlive the object.
  LayerErrors(const AttentionInput& input, const CacheWindows& tiers);
  ~LayerErrors();
  void add_weights(const KvMethod& method, LayerErrorSums& sums);

 private:
  struct Visible;
  struct Queries;
  static Visible visible_columns(const std::vector<std::int64_t>& positions, const AttentionInput& input,
                                 const CacheWindows& coded, const CacheWindows& tiers);
  void add_queries(const Queries& exact, const CachedRows& rows, LayerErrorSums& sums) const;

  const AttentionInput& input_;
  CacheWindows tiers_;
  at::Tensor keys_;                                // [Hkv, T, d] FP32
  std::vector<std::unique_ptr<Queries>> queries_;  // for short sequences, whose queries form one part
};

// Attention outputs [T, Hq, d], exact and of methods, from position `first` on. projection: W_O [hidden, Hq d], or
// undefined. The energy of the exact outputs is computed once.
class OutputErrors {
 public:
  OutputErrors(const at::Tensor& exact, std::int64_t first, std::int64_t kv_heads, const at::Tensor& projection);
  void add(const at::Tensor& method, LayerErrorSums& sums);

 private:
  struct Energy {
    std::vector<double> by_head;  // [Hkv]
    double projected;
  };
  at::Tensor exact_, projection_;  // [T, Hq, d]; [Hq d, hidden] FP32 or undefined
  std::int64_t first_, kv_heads_;
  std::vector<Energy> energies_;  // of the parts of long sequences
};

}  // namespace oscar
