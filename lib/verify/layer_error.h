// Errors of one method in one layer on the level of tensors, against exact attention on the same inputs.
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

// Sums over sequences of one KV head and the query heads that read it; all in FP64.
struct HeadErrorSums {
  double logit_error = 0, logit_energy = 0;    // squared, each query's mean over its coded keys removed
  double logit_cross = 0, stored_energy = 0;   // exact x stored, stored^2, means removed
  double output_error = 0, output_energy = 0;  // squared norms
  double divergence = 0;                       // KL(p || p') of the attention weights
  double sink_mass = 0, recent_mass = 0;       // what p' lacks of p on these tokens
  double queries = 0;                          // of divergence and masses

  void add(const HeadErrorSums& other);
  HeadError result(std::int64_t head) const;
};

struct LayerErrorSums {
  std::vector<HeadErrorSums> heads;                  // [Hkv]; grows on first use
  double projected_error = 0, projected_energy = 0;  // squared norms behind W_O, all heads together

  HeadErrorSums total() const;
  LayerError result(std::int64_t layer) const;
};

// Attention weights of up to 64 evenly spaced queries of the sequence, q k^T against q khat^T. Errors and correlation
// of logits are over the coded keys that a query sees, less each query's mean, which softmax does not see (a centered
// cache shifts all logits of a query alike). What the exact side gives is kept, for methods with the same windows.
class LayerErrors {
 public:
  // tiers: which tokens are the sink and the recent ones, the same for every method. input: must outlive the object.
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
  std::vector<std::unique_ptr<Queries>> queries_;  // of short sequences, whose queries are one part
};

// Outputs [T, Hq, d] of the exact and of methods' attention, from position `first` on. projection: W_O [hidden, Hq d],
// or undefined. The energy of the exact outputs is computed once.
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
  std::vector<Energy> energies_;  // of the parts that long sequences go in
};

}  // namespace oscar
