// A block of D threads takes kRows rows of one kind (queries of a KV head's group, its keys or its values); thread j
// computes channel j. Sums of the change of basis run over the channels in order, each product and sum rounded (this
// file is compiled without fused multiply-add): the bits of the CPU.
#include <cuda_bf16.h>

#include "kernels/append_tokens.h"
#include "kernels/common/page_layout.h"

namespace oscar::kernels {
namespace {

enum class RowKind { kQuery, kKey, kValue };

__device__ __forceinline__ float load_row(const void* rows, std::int64_t index, bool bfloat16) {
  return bfloat16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(rows)[index])
                  : static_cast<const float*>(rows)[index];
}

__device__ __forceinline__ float round_bfloat16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

// Sum over the block's D threads of each of the rows.
template <int D, int kRows>
__device__ __forceinline__ void block_sum(float (&x)[kRows], float (*scratch)[D / 32]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x[r] += __shfl_xor_sync(0xffffffffu, x[r], offset);
    if (lane == 0) scratch[r][warp] = x[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] = 0.0f;
#pragma unroll
    for (int w = 0; w < D / 32; ++w) x[r] += scratch[r][w];
  }
}

template <int D, int kRows>
__global__ void __launch_bounds__(D) append_kernel(const __grid_constant__ AppendTokensParams p) {
  __shared__ float rows[kRows][D];
  __shared__ float scratch[kRows][D / 32];
  const int kind_index = static_cast<int>(blockIdx.y) / p.kv_heads, head = static_cast<int>(blockIdx.y) % p.kv_heads;
  const RowKind kind = p.q == nullptr ? (kind_index == 0 ? RowKind::kKey : RowKind::kValue)
                                      : (kind_index == 0   ? RowKind::kQuery
                                         : kind_index == 1 ? RowKind::kKey
                                                           : RowKind::kValue);
  const int group = kind == RowKind::kQuery ? p.query_heads / p.kv_heads : 1;
  const int first = static_cast<int>(blockIdx.x) * kRows, total = p.tokens * group;
  if (first >= total) return;
  const int j = static_cast<int>(threadIdx.x);

  // The matrix is the launch's only large read and depends on nothing: its first rows are asked for before all else.
  constexpr int kAhead = kRows > 1 ? 1 : (D <= 128 ? D : 64);
  const float* matrix = kind == RowKind::kQuery ? p.query_matrix
                        : kind == RowKind::kKey ? p.key_matrix
                                                : p.value_matrix;
  float ahead[kAhead];
  if (matrix != nullptr) {
    const int heads = kind == RowKind::kValue ? p.value_matrix_heads : p.matrix_heads;
    matrix += static_cast<std::int64_t>(heads == 1 ? 0 : head) * D * D + j;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = __ldg(matrix + i * D);
  }

  const void* source = kind == RowKind::kQuery ? p.q : kind == RowKind::kKey ? p.k : p.v;
  const std::int64_t stride = kind == RowKind::kQuery ? p.q_stride : kind == RowKind::kKey ? p.k_stride : p.v_stride;
  const std::uint16_t* norm = kind == RowKind::kQuery ? p.q_norm : kind == RowKind::kKey ? p.k_norm : nullptr;
  AppendJob job[kRows];
  float x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int index = first + r, token = index / group;
    job[r] = {0, 0, -1};
    if (index < total) job[r] = p.jobs != nullptr ? p.jobs[token] : AppendJob{token, token, p.lengths[token] - 1};
    const int h = head * group + index % group;
    x[r] = job[r].position < 0 ? 0.0f : load_row(source, job[r].row * stride + h * D + j, p.rows_bfloat16);
  }
  if (norm != nullptr) {
    float sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = x[r] * x[r];
    block_sum<D, kRows>(sum, scratch);
    const float weight = __bfloat162float(__ushort_as_bfloat16(norm[j]));
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = x[r] * rsqrtf(sum[r] / static_cast<float>(D) + p.norm_eps) * weight;
  }
  if (p.rope_cos != nullptr && kind != RowKind::kValue) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r][j] = x[r];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = static_cast<std::int64_t>(max(job[r].position, 0)) * (D / 2) + j % (D / 2);
      const float other = rows[r][j ^ (D / 2)], turned = other * p.rope_sin[at];
      x[r] = x[r] * p.rope_cos[at] + (j < D / 2 ? -turned : turned);
    }
    __syncthreads();
  }
  if (norm != nullptr || (p.rope_cos != nullptr && kind != RowKind::kValue)) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = round_bfloat16(x[r]);
  }

  const float* mean = kind == RowKind::kKey ? p.key_mean : kind == RowKind::kValue ? p.value_mean : nullptr;
  if (mean != nullptr) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = x[r] - mean[head * D + j];
  }
  if (matrix != nullptr) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r][j] = x[r], x[r] = 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
#pragma unroll
      for (int r = 0; r < kRows; ++r) x[r] = x[r] + rows[r][i] * ahead[i];
#pragma unroll 16
    for (int i = kAhead; i < D; ++i) {
      const float weight = __ldg(matrix + i * D);
#pragma unroll
      for (int r = 0; r < kRows; ++r) x[r] = x[r] + rows[r][i] * weight;
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (job[r].position < 0) continue;
    const __nv_bfloat16 rounded = __float2bfloat16_rn(x[r]);
    if (kind == RowKind::kQuery) {
      const int h = head * group + (first + r) % group;
      p.query[(static_cast<std::int64_t>((first + r) / group) * p.query_heads + h) * D + j] =
          __bfloat16_as_ushort(rounded);
      continue;
    }
    const int position = job[r].position, ring = p.ring_pages * kPageTokens;
    const int slot = position < p.sink ? position : position % ring;
    const int place = slot / kPageTokens + (position < p.sink ? 0 : p.sink_pages);
    const int page = p.window_table[job[r].sequence * (p.sink_pages + p.ring_pages) + place];
    std::uint8_t* target =
        p.window_pages + (static_cast<std::int64_t>(page) * p.kv_heads + head) * window_page_bytes(D);
    *reinterpret_cast<__nv_bfloat16*>(target + window_offset(D, kind == RowKind::kValue, slot % kPageTokens, j)) =
        rounded;
  }
}

template <int D>
cudaError_t launch(const AppendTokensParams& p, cudaStream_t stream) {
  const int kinds = (p.q != nullptr ? 1 : 0) + (p.k != nullptr ? 2 : 0);
  const int rows = p.tokens * (p.q != nullptr ? p.query_heads / p.kv_heads : 1);
  const auto grid = [&](int each) {
    return dim3(static_cast<unsigned>((rows + each - 1) / each), static_cast<unsigned>(kinds * p.kv_heads));
  };
  // One row a block while the GPU has room: the sums are one long chain. Then the matrix is shared by several.
  if (rows * kinds * p.kv_heads <= 1024) {
    append_kernel<D, 1><<<grid(1), D, 0, stream>>>(p);
  } else {
    append_kernel<D, 8><<<grid(8), D, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

__global__ void flush_runs_kernel(const __grid_constant__ FlushRunsParams p) {
  const int b = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (b >= p.batch) return;
  const auto end_of = [&](int n) { return p.sink + (max(0, n - p.sink - p.recent) & -p.flush); };
  const int n = p.lengths[b], begin = end_of(n - 1), end = end_of(n), body = begin - p.sink;
  const int ring = p.ring_pages * kPageTokens;
  PageRun run{0, 0, 0, 0};
  if (n > 0 && end > begin) {
    run = {b * ring + begin % ring, end - begin,
           p.page_table[static_cast<std::int64_t>(b) * p.max_pages + body / kPageTokens], body % kPageTokens};
  }
  p.runs[b] = run;
}

}  // namespace

cudaError_t append_tokens(const AppendTokensParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads != 0 || (p.k == nullptr) != (p.v == nullptr) ||
      (p.jobs == nullptr && p.lengths == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (p.tokens == 0 || (p.q == nullptr && p.k == nullptr)) return cudaSuccess;
  switch (p.head_dim) {
    case 64:
      return launch<64>(p, stream);
    case 128:
      return launch<128>(p, stream);
    case 256:
      return launch<256>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t flush_runs(const FlushRunsParams& p, cudaStream_t stream) {
  if (p.flush < 1 || p.flush > kPageTokens || (p.flush & (p.flush - 1)) != 0 || p.ring_pages < 1) {
    return cudaErrorInvalidValue;
  }
  if (p.batch == 0) return cudaSuccess;
  flush_runs_kernel<<<static_cast<unsigned>((p.batch + 127) / 128), 128, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace oscar::kernels
