// Streamed second moments of one layer (docs/format-statistics.md). Sums are FP64. Products are FP32 over blocks of
// rows and are added to the sums in a fixed order. The FP32 part is short, so the relative error of a sum stays near
// 1e-7 (measured in tests/statistics) and does not grow with the number of tokens. CPU and GPU results differ by less
// than 1e-6.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "statistics/statistics.h"

namespace oscar {

// Rows of one FP32 product, and rows converted to FP32 at once (a multiple of the former). CPU: a block fits the cache,
// and BLAS itself adds in short pieces. GPU: one long sum in a thread would lose digits, and many products fill the
// GPU.
inline constexpr std::int64_t kBlockRows = 1024, kChunkRows = 1024;
inline constexpr std::int64_t kGpuBlockRows = 256, kGpuChunkRows = 16384;

// sum += x^T x for each KV head, over all rows and over the heads of its group. x [T, H, d] of any float type, H a
// multiple of Hkv; head h belongs to KV head h / (H / Hkv). sum [Hkv, d, d] FP64.
void add_gram(at::Tensor& sum, const at::Tensor& x);
// The same for rows whose mean may be hundreds of times their deviation (key biases); also row_sum [Hkv, d] += 1 x. H =
// Hkv. It multiplies rows about the mean of each chunk and adds the mean back in FP64, so a covariance keeps its
// digits.
void add_gram_about_mean(at::Tensor& sum, at::Tensor& row_sum, const at::Tensor& x);
// The same two functions for rows [Hkv, n, d], FP32, contiguous. add_rows_about_mean() changes `rows`.
void add_rows(at::Tensor& sum, const at::Tensor& rows);
void add_rows_about_mean(at::Tensor& sum, at::Tensor& row_sum, at::Tensor& rows);
// Makes the matrix exactly symmetric: a GEMM may round (i, j) and (j, i) differently.
at::Tensor exactly_symmetric(const at::Tensor& gram);

class MomentAccumulator {
 public:
  MomentAccumulator(std::int64_t kv_heads, std::int64_t head_dim, at::Device device);

  // q, o [T, Hq, d]; k, v [T, Hkv, d]: the attention's input and output for some tokens.
  void add(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& o);
  // The same with keys and values in one tensor [T, 2 Hkv, d], K heads first. It needs half the launches on a GPU.
  void add(const at::Tensor& q, const at::Tensor& keys_values, const at::Tensor& o);
  // Trace of all grams so far, FP64 on the device. Each added element enters it squared, so the trace is finite exactly
  // when all elements are.
  at::Tensor trace() const;

  // The sums of a complete layer on their device (q_gram, k_gram, k_sum, v_gram, v_sum, o_gram), with grams made
  // exactly symmetric. They may share memory with the running sums, which must not change after this call.
  void finish(LayerMoments& out) const;

 private:
  at::Tensor grams_, sums_;                                       // [4, Hkv, d, d]: Q, K, V, O; [2, Hkv, d]: K, V
  at::Tensor q_gram_, k_gram_, k_sum_, v_gram_, v_sum_, o_gram_;  // views of grams_ and sums_
};

// The published value weights: w_t = k_t C_Q k_t^T with the layer's complete C_Q = Q^T Q of the KV head, normalized to
// mean 1 over all tokens (OSCAR, target "sst"). They need a second pass over K and V.
class EnergyAccumulator {
 public:
  explicit EnergyAccumulator(const at::Tensor& q_gram, at::Device device);  // [Hkv, d, d] FP64
  void add(const at::Tensor& k, const at::Tensor& v);                       // [T, Hkv, d]
  at::Tensor energy_gram() const;                                           // [Hkv, d, d] FP64 on the device

 private:
  at::Tensor metric_;  // [Hkv, d, d] FP32, C_Q / tr(C_Q): the scale cancels in the normalization
  at::Tensor gram_, weight_;
  std::int64_t tokens_ = 0;
};

// Sum of W^T W over the group's query heads; W [hidden, d] are the head's columns of W_O. o_weight [hidden, Hq * d].
at::Tensor output_projection_gram(const at::Tensor& o_weight, std::int64_t kv_heads, std::int64_t head_dim);

}  // namespace oscar
