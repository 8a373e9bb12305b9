// A block takes 128 queries of one head, a warp 32 of them. It makes two passes over the keys: one for the logarithm of
// each softmax sum, one for squares of weights and their products with values. Products are as in FlashAttention-2
// (arXiv 2307.08691): scores stay in registers and become the operand of the next product.
#include "kernels/far_pairs/far_pair_sums.h"

#include <cstddef>

#include "kernels/common/hopper_code.h"
#include "kernels/common/launch_kernel.cuh"
#include "kernels/far_pairs/hopper_launch.h"
#include "kernels/far_pairs/tensor_ops.cuh"

namespace oscar::kernels {
namespace {

using namespace far;

constexpr int kStages = 2;

template <int D>
struct Shared {
  std::uint16_t q[kQueries][D + 8];
  Tile<D> k[kStages], high[kStages], low[kStages];
  float norm[kStages][kKeys];
};

// A warp's view of its rows: tile m of 16 has rows lane / 4 and lane / 4 + 8 in each lane, and four lanes share a row.
template <int D>
struct Warp {
  const FarPairsParams& p;
  Shared<D>& s;
  int lane, row0, query0, head;  // row0: first row of the warp in the block; query0: position of that row

  __device__ __forceinline__ Warp(const FarPairsParams& params, Shared<D>& shared, int first_query)
      : p(params), s(shared), lane(threadIdx.x % 32), row0(threadIdx.x / 32 * kWarpQueries) {
    query0 = first_query + row0, head = blockIdx.y;
  }
  __device__ __forceinline__ int query(int m, int half) const { return query0 + 16 * m + lane / 4 + 8 * half; }

  // Scores of 32 queries and the 32 keys of a stage: [m][keys / 8], element i as mma lays it out.
  __device__ __forceinline__ void scores(int stage, float (&c)[2][4][4]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) load(a[m], &s.q[row0 + 16 * m + lane % 16][d + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        std::uint32_t b[4];
        load(b, &s.k[stage][8 * n + lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply(c[m][n], a[m], b[0], b[1]);
          multiply(c[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
};

// Logarithms (base 2) of the softmax sums over keys [0, query], for the rows that a lane shares.
template <int D>
__device__ __forceinline__ void log_sums(const Warp<D>& warp, int last_query, float (&log_sum)[2][2]) {
  const FarPairsParams& p = warp.p;
  const std::uint16_t* keys = p.k + warp.head / (p.query_heads / p.kv_heads) * D;
  const int tiles = last_query / kKeys + 1;
  const float scale = p.scale * kLog2E;
  float top[2][2], sum[2][2];
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) top[m][h] = -INFINITY, sum[m][h] = 0.0f;
  copy_rows<D, kKeys>(warp.s.k[0], keys, p.k_stride, 0, p.tokens);
  commit();
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages;
    if (tile + 1 < tiles) copy_rows<D, kKeys>(warp.s.k[1 - stage], keys, p.k_stride, (tile + 1) * kKeys, p.tokens);
    commit();
    wait<1>();
    __syncthreads();
    float c[2][4][4];
    warp.scores(stage, c);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int query = warp.query(m, h);
        float high = top[m][h];
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = c[m][n][2 * h + i];
            x = tile * kKeys + 8 * n + warp.lane % 4 * 2 + i <= query ? x * scale : -INFINITY;
            high = fmaxf(high, x);
          }
        high = row_max(high);  // every query sees key 0, so it is finite from the first tile on
        float part = sum[m][h] * exp2f(top[m][h] - high);
#pragma unroll
        for (int n = 0; n < 4; ++n) part += exp2f(c[m][n][2 * h] - high) + exp2f(c[m][n][2 * h + 1] - high);
        top[m][h] = high, sum[m][h] = part;
      }
    }
    __syncthreads();
  }
  wait<0>();
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = row_sum(sum[m][h]), high = top[m][h];
      if (p.sink_logits != nullptr) {
        const float sink = p.sink_logits[warp.head] * kLog2E, above = fmaxf(high, sink);
        total = total * exp2f(high - above) + exp2f(sink - above), high = above;
      }
      log_sum[m][h] = high + log2f(total);
    }
}

// Copies the data of one tile for the second pass.
template <int D>
__device__ __forceinline__ void copy_tile(const FarPairsParams& p, Shared<D>& s, int head, int tile, int stage) {
  const std::int64_t plane = static_cast<std::int64_t>(head) * p.tokens;
  const int first = tile * kKeys;
  copy_rows<D, kKeys>(s.k[stage], p.k + head / (p.query_heads / p.kv_heads) * D, p.k_stride, first, p.tokens);
  copy_rows<D, kKeys>(s.high[stage], p.u_high + plane * D, D, first, p.tokens);
  copy_rows<D, kKeys>(s.low[stage], p.u_low + plane * D, D, first, p.tokens);
  if (threadIdx.x < kKeys) {
    s.norm[stage][threadIdx.x] = first + threadIdx.x < p.tokens ? p.u_norm[plane + first + threadIdx.x] : 0.0f;
  }
}

// Sums over the keys outside the windows: of p^2 u, [m][D / 8] as mma lays them out; of p^2 and p^2 |u|^2, over the
// lane's own columns.
template <int D>
struct Sums {
  float values[2][D / 8][4] = {};
  float seen[2][2] = {}, norms[2][2] = {};

  __device__ __forceinline__ void add(const Warp<D>& warp, int stage, const std::uint32_t (&high)[2][2][4],
                                      const std::uint32_t (&low)[2][2][4]) {
    const int lane = warp.lane;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        std::uint32_t b[4], rest[4];
        const int row = 16 * k + lane % 8 + lane / 8 % 2 * 8, column = 8 * n + lane / 16 * 8;
        load_transposed(b, &warp.s.high[stage][row][column]);
        load_transposed(rest, &warp.s.low[stage][row][column]);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply(values[m][n], high[m][k], b[0], b[1]);
          multiply(values[m][n + 1], high[m][k], b[2], b[3]);
          multiply(values[m][n], low[m][k], b[0], b[1]);
          multiply(values[m][n + 1], low[m][k], b[2], b[3]);
          multiply(values[m][n], high[m][k], rest[0], rest[1]);
          multiply(values[m][n + 1], high[m][k], rest[2], rest[3]);
        }
      }
    }
  }
};

// p^2 of a tile as high and low BF16 operands, 0 for pairs inside the windows.
template <int D>
__device__ __forceinline__ void squares(const Warp<D>& warp, int tile, int stage, const float (&log_sum)[2][2],
                                        Sums<D>& sums, std::uint32_t (&high)[2][2][4], std::uint32_t (&low)[2][2][4]) {
  const FarPairsParams& p = warp.p;
  const float scale = p.scale * kLog2E;
  float c[2][4][4];
  warp.scores(stage, c);
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float x[2], kept[2], rest[2];
        const int column = 8 * n + warp.lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = tile * kKeys + column + i;
          const bool is_far = key >= p.sink && key <= warp.query(m, h) - p.recent;
          const float weight = is_far ? exp2f(c[m][n][2 * h + i] * scale - log_sum[m][h]) : 0.0f;
          x[i] = weight * weight;
          kept[i] = __bfloat162float(__float2bfloat16_rn(x[i]));
          rest[i] = __bfloat162float(__float2bfloat16_rn(x[i] - kept[i]));
          sums.seen[m][h] += kept[i] + rest[i];
          sums.norms[m][h] += (kept[i] + rest[i]) * warp.s.norm[stage][column + i];
        }
        high[m][n / 2][n % 2 * 2 + h] = pack(kept[0], kept[1]);
        low[m][n / 2][n % 2 * 2 + h] = pack(rest[0], rest[1]);
      }
}

template <int D>
__global__ void __launch_bounds__(kThreads) far_kernel(const __grid_constant__ FarPairsParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared<D>& s = *reinterpret_cast<Shared<D>*>(memory);
  // The last queries see the most keys, so their blocks begin first.
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x), first = p.first + block * kQueries;
  const int end = min(p.first + p.count, first + kQueries);
  const Warp<D> warp(p, s, first);
  copy_rows<D, kQueries>(s.q, p.q + warp.head * D, p.q_stride, first, end);  // belongs to the first group of copies
  float log_sum[2][2];
  log_sums(warp, end - 1, log_sum);

  Sums<D> sums;
  const int begin = p.sink / kKeys, tiles = (end - 1 - p.recent) / kKeys + 1;
  copy_tile(p, s, warp.head, begin, 0);
  commit();
  for (int tile = begin; tile < tiles; ++tile) {
    const int stage = (tile - begin) % kStages;
    if (tile + 1 < tiles) copy_tile(p, s, warp.head, tile + 1, 1 - stage);
    commit();
    wait<1>();
    __syncthreads();
    std::uint32_t high[2][2][4], low[2][2][4];
    squares(warp, tile, stage, log_sum, sums, high, low);
    sums.add(warp, stage, high, low);
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      write_query<D>(p, warp.head, warp.lane, warp.query(m, h), end, sums.seen[m][h], sums.norms[m][h],
                     [&](int n, int i) { return sums.values[m][n][2 * h + i]; });
    }
}

// One warp per row.
template <int D>
__global__ void __launch_bounds__(256) split_kernel(const __grid_constant__ SplitRowsParams p) {
  const std::int64_t row = blockIdx.x * std::int64_t{8} + threadIdx.x / 32;
  if (row >= p.tokens * p.heads) return;
  const int lane = threadIdx.x % 32;
  const float* center = p.center + row / p.tokens * D;
  float norm = 0.0f;
#pragma unroll
  for (int i = 0; i < D; i += 32) {
    const float x = p.rows[row * D + i + lane] - center[i + lane];
    const __nv_bfloat16 high = __float2bfloat16_rn(x), low = __float2bfloat16_rn(x - __bfloat162float(high));
    p.high[row * D + i + lane] = __bfloat16_as_ushort(high);
    p.low[row * D + i + lane] = __bfloat16_as_ushort(low);
    const float kept = __bfloat162float(high) + __bfloat162float(low);
    norm += kept * kept;
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) norm += __shfl_xor_sync(0xffffffffu, norm, apart);
  if (lane == 0) p.norm[row] = norm;
}

template <int D>
cudaError_t launch(const FarPairsParams& p, cudaStream_t stream) {
  return launch_with<far_kernel<D>, Shared<D>>(grid_of(blocks_of(p.count, kQueries), p.query_heads), kThreads, stream,
                                               p);
}

// True if this build has the kernel of far_pair_sums_hopper.cu for the current device.
bool on_hopper() {
  int device = 0, major = 0;
  return kHopperCode && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}

}  // namespace

bool far_pairs_built(int head_dim) { return head_dim == 64 || head_dim == 128; }

cudaError_t far_pairs(const FarPairsParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads != 0 || p.q_stride % 8 != 0 || p.k_stride % 8 != 0 ||
      p.first < p.sink + p.recent || p.recent < 0 || p.first + p.count > p.tokens) {
    return cudaErrorInvalidValue;
  }
  if (p.count == 0) return cudaSuccess;
  if (!far_pairs_built(p.head_dim)) return cudaErrorInvalidValue;
  if (on_hopper()) return far_pairs_hopper(p, stream);
  return for_head_dim<64, 128>(p.head_dim, [&]<int D>() { return launch<D>(p, stream); });
}

cudaError_t split_rows(const SplitRowsParams& p, cudaStream_t stream) {
  const std::int64_t rows = p.tokens * p.heads;
  if (rows == 0) return cudaSuccess;
  return for_head_dim<64, 128>(
      p.head_dim, [&]<int D>() { return launch_kernel<split_kernel<D>>(grid_of(blocks_of(rows, 8)), 256, stream, p); });
}

}  // namespace oscar::kernels
