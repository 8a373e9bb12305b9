// A block of D threads takes kRows rows of one kind (queries of a KV head's GQA group, its keys or its values); thread
// j computes channel j. Sums of the change of basis run over the channels in order, each product and sum rounded. This
// file is compiled without fused multiply-add, so the bits equal the CPU's.
#include <cuda_bf16.h>

#include "kernels/append/append_tokens.h"
#include "kernels/common/fragment_pages.h"
#include "kernels/common/launch_kernel.cuh"
#include "kernels/common/rope_mean.h"

namespace oscar::kernels {
namespace {

enum class RowKind { kQuery, kKey, kValue };

__device__ __forceinline__ float load_row(const void* rows, std::int64_t index, bool bfloat16) {
  return bfloat16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(rows)[index])
                  : static_cast<const float*>(rows)[index];
}

// The rows of a block: kRows rows of one kind, from row `first` on, of one KV head.
struct BlockRows {
  RowKind kind;
  int head, gqa_group;  // gqa_group: rows of the head per token
  int first, total;     // total: rows of the head in all tokens

  __device__ __forceinline__ BlockRows(const AppendTokensParams& p, int rows) {
    const int kind_index = static_cast<int>(blockIdx.y) / p.kv_heads;
    head = static_cast<int>(blockIdx.y) % p.kv_heads;
    kind = p.q == nullptr ? (kind_index == 0 ? RowKind::kKey : RowKind::kValue)
                          : (kind_index == 0   ? RowKind::kQuery
                             : kind_index == 1 ? RowKind::kKey
                                               : RowKind::kValue);
    gqa_group = kind == RowKind::kQuery ? p.query_heads / p.kv_heads : 1;
    first = static_cast<int>(blockIdx.x) * rows, total = p.tokens * gqa_group;
  }

  template <class T>
  __device__ __forceinline__ T choose(T query, T key, T value) const {
    return kind == RowKind::kQuery ? query : kind == RowKind::kKey ? key : value;
  }
};

// The change of basis: the thread of channel j computes channel j of x M.
template <int D, int kRows, int kStage>
struct ChannelOfMatrix {
  // The matrix is the launch's only large read and depends on nothing, so its first rows are requested before all else.
  // The registers hold one stage of it, and the next stage is requested before this one is used.
  const float* column;  // null: rows stay in their basis
  float first[kStage];

  __device__ __forceinline__ ChannelOfMatrix(const AppendTokensParams& p, const BlockRows& block, int j)
      : column(block.choose(p.query_matrix, p.key_matrix, p.value_matrix)) {
    if (column == nullptr) return;
    const int heads = block.kind == RowKind::kValue ? p.value_matrix_heads : p.matrix_heads;
    column += static_cast<std::int64_t>(heads == 1 ? 0 : block.head) * D * D + j;
    load(first, 0);
  }

  __device__ __forceinline__ void load(float (&stage)[kStage], int begin) const {
#pragma unroll
    for (int i = 0; i < kStage; ++i) stage[i] = __ldg(column + (begin + i) * D);
  }

  __device__ __forceinline__ void multiply(float (&x)[kRows], float (*rows)[D], int j) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r][j] = x[r], x[r] = 0.0f;
    __syncthreads();
    float stage[kStage];
#pragma unroll
    for (int i = 0; i < kStage; ++i) stage[i] = first[i];
#pragma unroll
    for (int begin = 0; begin < D; begin += kStage) {
      float next[kStage];
      if (begin + kStage < D) load(next, begin + kStage);
#pragma unroll
      for (int i = 0; i < kStage; i += 4) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float4 four = *reinterpret_cast<const float4*>(&rows[r][begin + i]);
          x[r] = x[r] + four.x * stage[i];
          x[r] = x[r] + four.y * stage[i + 1];
          x[r] = x[r] + four.z * stage[i + 2];
          x[r] = x[r] + four.w * stage[i + 3];
        }
      }
      if (begin + kStage < D) {
#pragma unroll
        for (int i = 0; i < kStage; ++i) stage[i] = next[i];
      }
    }
  }
};

// The rows as the model computed them. Missing rows are zeros, with position -1.
template <int D, int kRows>
__device__ __forceinline__ void load_rows(const AppendTokensParams& p, const BlockRows& block, int j,
                                          AppendJob (&job)[kRows], float (&x)[kRows]) {
  const void* source = block.choose(p.q, p.k, p.v);
  const std::int64_t stride = block.choose(p.q_stride, p.k_stride, p.v_stride);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int index = block.first + r, token = index / block.gqa_group;
    job[r] = {0, 0, -1};
    if (index < block.total) job[r] = p.jobs != nullptr ? p.jobs[token] : AppendJob{token, token, p.lengths[token] - 1};
    const int h = block.head * block.gqa_group + index % block.gqa_group;
    x[r] = job[r].position < 0 ? 0.0f : load_row(source, job[r].row * stride + h * D + j, p.rows_bfloat16);
  }
}

// The other channel of thread j's RoPE pair.
template <int D>
__device__ __forceinline__ int other_half(int j) {
  return j ^ (D / 2);
}

template <int D, int kRows>
__device__ __forceinline__ void subtract_mean(const AppendTokensParams& p, const BlockRows& block, int j,
                                              const AppendJob (&job)[kRows], float (&x)[kRows]) {
  const float* mean = block.choose<const float*>(nullptr, p.key_mean, p.value_mean);
  if (mean == nullptr) return;
  mean += block.head * D;
  const bool rotated = block.kind == RowKind::kKey && p.rope_phases != nullptr;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t position = max(job[r].position, 0);
    x[r] = x[r] - mean_channel(mean, rotated ? p.rope_phases + position * D : nullptr, D, j);
  }
}

// Channel j of u(q): the contribution of the mean to the logits, as a query of the phases.
template <int D, int kRows>
__device__ __forceinline__ void write_position_query(const AppendTokensParams& p, const BlockRows& block, int j,
                                                     const AppendJob (&job)[kRows], const float (&x)[kRows],
                                                     float (*rows)[D]) {
  if (block.kind != RowKind::kQuery || p.position_query == nullptr) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r][j] = x[r];
  __syncthreads();
  const float *mean = p.key_mean + block.head * D, own = mean[j], other = mean[other_half<D>(j)];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (job[r].position < 0) continue;
    const int row = block.first + r, h = block.head * block.gqa_group + row % block.gqa_group;
    const float partner = rows[r][other_half<D>(j)];
    p.position_query[(static_cast<std::int64_t>(row / block.gqa_group) * p.query_heads + h) * D + j] =
        j < D / 2 ? x[r] * own + partner * other : x[r] * other - partner * own;
  }
  __syncthreads();
}

// Writes channel j of a query to the launch's queries.
template <int D>
__device__ __forceinline__ void write_query(const AppendTokensParams& p, const BlockRows& block, int row, int j,
                                            __nv_bfloat16 x) {
  const int h = block.head * block.gqa_group + row % block.gqa_group;
  p.query[(static_cast<std::int64_t>(row / block.gqa_group) * p.query_heads + h) * D + j] = __bfloat16_as_ushort(x);
}

// The place of channel j of a key or value in the window pages, in the sink or in the ring of recent tokens.
template <int D>
__device__ __forceinline__ __nv_bfloat16* window_place(const AppendTokensParams& p, const BlockRows& block,
                                                       const AppendJob& job, int j) {
  const int position = max(job.position, 0), ring = p.ring_pages * kPageTokens;
  const int slot = position < p.sink ? position : position % ring;
  const int place = slot / kPageTokens + (position < p.sink ? 0 : p.sink_pages);
  const int page = p.window_table[job.sequence * (p.sink_pages + p.ring_pages) + place];
  std::uint8_t* target =
      p.window_pages + (static_cast<std::int64_t>(page) * p.kv_heads + block.head) * window_page_bytes(D);
  return reinterpret_cast<__nv_bfloat16*>(target +
                                          window_offset(D, block.kind == RowKind::kValue, slot % kPageTokens, j));
}

template <int D, int kRows, int kStage>
__global__ void __launch_bounds__(D) append_kernel(const __grid_constant__ AppendTokensParams p) {
  let_next_start();
  __shared__ __align__(16) float rows[kRows][D];
  const BlockRows block(p, kRows);
  if (block.first >= block.total) return;
  const int j = static_cast<int>(threadIdx.x);
  const ChannelOfMatrix<D, kRows, kStage> matrix(p, block, j);

  AppendJob job[kRows];
  float x[kRows];
  load_rows<D, kRows>(p, block, j, job, x);
  write_position_query<D, kRows>(p, block, j, job, x, rows);
  subtract_mean<D, kRows>(p, block, j, job, x);
  __nv_bfloat16* to[kRows] = {};  // found before the sums, since it takes two reads
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (block.kind != RowKind::kQuery) to[r] = window_place<D>(p, block, job[r], j);
  if (matrix.column != nullptr) matrix.multiply(x, rows, j);

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (job[r].position < 0) continue;
    const __nv_bfloat16 rounded = __float2bfloat16_rn(x[r]);
    if (block.kind == RowKind::kQuery) {
      write_query<D>(p, block, block.first + r, j, rounded);
    } else {
      *to[r] = rounded;
    }
  }
}

template <int D>
cudaError_t launch(const AppendTokensParams& p, cudaStream_t stream) {
  const int kinds = (p.q != nullptr ? 1 : 0) + (p.k != nullptr ? 2 : 0);
  const int group = p.q != nullptr ? p.query_heads / p.kv_heads : 0;
  const int rows = p.tokens * (group > 1 ? group : 1);                         // of one kind and head
  const int all = p.tokens * p.kv_heads * (group + (p.k != nullptr ? 2 : 0));  // rows of the launch
  // One row per block while the GPU has room, since the sums are one long chain. Otherwise several rows share the
  // matrix. The stages are as long as registers allow while all blocks, and some of the next kernel, run at once.
  const auto with = [&]<int kRows, int kStage>() {
    const dim3 grid = grid_of(blocks_of(rows, kRows), kinds * p.kv_heads);
    return launch_kernel<append_kernel<D, kRows, kStage>>(grid, D, stream, p);
  };
  if (all <= 256) return with.template operator()<1, (D <= 128 ? D : 64)>();
  if (all <= 768) return with.template operator()<2, 64>();
  if (all <= 2048) return with.template operator()<2, 32>();
  if (all <= 8192) return with.template operator()<4, 16>();
  return with.template operator()<8, 16>();
}

}  // namespace

cudaError_t append_tokens(const AppendTokensParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads != 0 || (p.k == nullptr) != (p.v == nullptr) ||
      (p.jobs == nullptr && p.lengths == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if ((p.rope_phases != nullptr && p.key_mean == nullptr) ||
      (p.position_query != nullptr && (p.rope_phases == nullptr || p.q == nullptr))) {
    return cudaErrorInvalidValue;
  }
  if (p.tokens == 0 || (p.q == nullptr && p.k == nullptr)) return cudaSuccess;
  return for_fast_head_dim(p.head_dim, [&]<int D>() { return launch<D>(p, stream); });
}

}  // namespace oscar::kernels
