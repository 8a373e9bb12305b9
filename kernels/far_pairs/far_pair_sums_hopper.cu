// far_pair_sums.cu for Hopper, with the same bits: the same sums in the same order, by products of warpgroups that read
// shared memory themselves. A warpgroup takes 64 queries; four more warps copy tiles of 64 keys ahead of all
// warpgroups.
#include <cstddef>

#include "kernels/common/hopper_code.h"
#include "kernels/common/launch_kernel.cuh"
#include "kernels/far_pairs/hopper_launch.h"
#include "kernels/far_pairs/hopper_tiles.cuh"
#include "kernels/far_pairs/tensor_ops.cuh"

namespace oscar::kernels {
namespace {

using namespace hopper;

// A view of one warp of a warpgroup. It has 16 queries; a lane shares queries lane / 4 and lane / 4 + 8 with three
// other lanes. In each tile a lane has the columns 8 n + lane % 4 * 2 and the next.
template <int D>
struct GroupWarp {
  const FarPairsParams& p;
  Buffers<D>& s;
  int lane, group, group0, query0, head;
  float scale;

  __device__ __forceinline__ GroupWarp(const FarPairsParams& params, Buffers<D>& shared, int first_query)
      : p(params), s(shared), lane(threadIdx.x % 32), group(threadIdx.x / 128) {
    group0 = first_query + group * kGroupQueries, query0 = group0 + threadIdx.x % 128 / 32 * 16, head = blockIdx.x;
    scale = p.scale * far::kLog2E;
  }
  __device__ __forceinline__ int query(int half) const { return query0 + lane / 4 + 8 * half; }
  __device__ __forceinline__ int column(int n) const { return 8 * n + lane % 4 * 2; }

  // Starts the scores of the warpgroup's queries and the keys of a buffer: c[4 n + 2 half + i].
  __device__ __forceinline__ void scores(int buffer, float (&c)[32]) const {
    const std::uint32_t q = shared_address(&s.q[0][group * kGroupQueries][0]);
    const std::uint32_t k = shared_address(&s.k[buffer][0][0][0]);
    fence();
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      const int atom = d / 64, at = d % 64 * 2;
      multiply64(c, operand(q + atom * kBlockQueries * 128 + at), operand(k + atom * kTileKeys * 128 + at), d > 0);
    }
    commit_products();
  }
  __device__ __forceinline__ void release(int buffer) const {
    __syncwarp();
    if (lane == 0) arrive(&s.empty[buffer]);
  }
};

// The largest scaled scores of the two queries so far, and the sums of powers relative to them.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // kSeen: all queries of the warp see all keys of the tile.
  template <bool kSeen, int D>
  __device__ __forceinline__ void add(const GroupWarp<D>& warp, int tile, float (&c)[32]) {
#pragma unroll
    for (int part = 0; part < 8; part += 4) {  // 32 keys at a time
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float high = top[h];
#pragma unroll
        for (int n = part; n < part + 4; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = c[4 * n + 2 * h + i];
            x = __fmul_rn(x, warp.scale);
            if (!kSeen) x = tile * kTileKeys + warp.column(n) + i <= warp.query(h) ? x : -INFINITY;
            high = fmaxf(high, x);
          }
        high = far::row_max(high);  // every query sees key 0, so it is finite from the first tile on
        float total = sum[h] * power(top[h] - high);
#pragma unroll
        for (int n = part; n < part + 4; ++n)
          total += power(c[4 * n + 2 * h] - high) + power(c[4 * n + 2 * h + 1] - high);
        top[h] = high, sum[h] = total;
      }
    }
  }
};

// Logarithms (base 2) of the softmax sums over keys [0, query].
template <int D>
__device__ __forceinline__ void log_sums(const GroupWarp<D>& warp, int tiles, float (&log_sum)[2]) {
  const FarPairsParams& p = warp.p;
  Softmax softmax;
  const auto begin = [&](int tile, float(&c)[32]) {
    wait_for(&warp.s.full[tile % kBuffers], tile / kBuffers % 2);
    warp.scores(tile % kBuffers, c);
  };
  const auto add = [&](int tile, float(&c)[32]) {
    settle(c);
    warp.release(tile % kBuffers);
    if (tile * kTileKeys + kTileKeys - 1 <= warp.query0) {
      softmax.add<true>(warp, tile, c);
    } else {
      softmax.add<false>(warp, tile, c);
    }
  };
  // Tiles that at least one query of the warpgroup sees: scores of the next tile overlap with powers of this one.
  const int seen = min(tiles, (warp.group0 + kGroupQueries - 1) / kTileKeys + 1);
  float even[32], odd[32];
  begin(0, even);
  int tile = 1;
  for (; tile + 1 < seen; tile += 2) {
    begin(tile, odd);
    wait_products<1>();
    add(tile - 1, even);
    begin(tile + 1, even);
    wait_products<1>();
    add(tile, odd);
  }
  if (tile < seen) {
    begin(tile, odd);
    wait_products<1>();
    add(tile - 1, even);
    wait_products<0>();
    add(tile, odd);
  } else {
    wait_products<0>();
    add(tile - 1, even);
  }
  for (tile = seen; tile < tiles; ++tile) {
    wait_for(&warp.s.full[tile % kBuffers], tile / kBuffers % 2);
    warp.release(tile % kBuffers);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = far::row_sum(softmax.sum[h]), high = softmax.top[h];
    if (p.sink_logits != nullptr) {
      const float sink = p.sink_logits[warp.head] * far::kLog2E, above = fmaxf(high, sink);
      total = total * exp2f(high - above) + exp2f(sink - above), high = above;
    }
    log_sum[h] = high + log2f(total);
  }
}

template <int D>
struct GroupSums {
  float values[D / 2] = {};  // sums of p^2 u: [4 n + 2 half + i]
  float seen[2] = {}, norms[2] = {};
};

// Replaces the scores of a tile by p, and by 0 for pairs inside the windows.
template <bool kAllFar, int D>
__device__ __forceinline__ void powers_of(const GroupWarp<D>& warp, int tile, const float (&log_sum)[2],
                                          float (&c)[32]) {
  const FarPairsParams& p = warp.p;
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = c[4 * n + 2 * h + i];
        const int key = tile * kTileKeys + warp.column(n) + i;
        const bool is_far = kAllFar || (key >= p.sink && key <= warp.query(h) - p.recent);
        x = is_far ? power(x * warp.scale - log_sum[h]) : 0.0f;
      }
}

// Squares of p as high and low BF16 operands, and their sums.
template <int D>
__device__ __forceinline__ void split(const GroupWarp<D>& warp, int buffer, const float (&c)[32], GroupSums<D>& sums,
                                      std::uint32_t (&high)[4][4], std::uint32_t (&low)[4][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 norm = *reinterpret_cast<const float2*>(&warp.s.norm[buffer][warp.column(n)]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float a = c[4 * n + 2 * h], b = c[4 * n + 2 * h + 1];
      const float x = a * a, y = b * b;
      const std::uint32_t kept = far::pack(x, y);
      const float k0 = __uint_as_float(kept << 16), k1 = __uint_as_float(kept & 0xffff0000u);
      const std::uint32_t rest = far::pack(x - k0, y - k1);
      const float r0 = __uint_as_float(rest << 16), r1 = __uint_as_float(rest & 0xffff0000u);
      sums.seen[h] += k0 + r0;
      sums.norms[h] += (k0 + r0) * norm.x;
      sums.seen[h] += k1 + r1;
      sums.norms[h] += (k1 + r1) * norm.y;
      high[n / 2][n % 2 * 2 + h] = kept;
      low[n / 2][n % 2 * 2 + h] = rest;
    }
  }
}

// Starts p^2 u of a tile.
template <int D>
__device__ __forceinline__ void add_values(const GroupWarp<D>& warp, int buffer, const std::uint32_t (&high)[4][4],
                                           const std::uint32_t (&low)[4][4], GroupSums<D>& sums) {
  constexpr int kAlong = kTileKeys * 128;
  const std::uint32_t u = shared_address(&warp.s.high[buffer][0][0][0]);
  const std::uint32_t rest = shared_address(&warp.s.low[buffer][0][0][0]);
  fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint64_t keys = operand(u + k * 16 * 128, kAlong);
    multiply_rows(sums.values, high[k], keys);
    multiply_rows(sums.values, low[k], keys);
    multiply_rows(sums.values, high[k], operand(rest + k * 16 * 128, kAlong));
  }
  commit_products();
}

// Starts the scores of the next tile before the values of this tile, so that they overlap with its powers.
template <int D>
__device__ __forceinline__ void add_far(const GroupWarp<D>& warp, const Course& course, const float (&log_sum)[2],
                                        GroupSums<D>& sums) {
  const FarPairsParams& p = warp.p;
  // Tiles in which at least one query of the warpgroup has a key outside its windows.
  const int last = min(course.end, (warp.group0 + kGroupQueries - 1 - p.recent) / kTileKeys + 1);
  const auto buffer = [&](int tile) { return (course.sums + tile - course.begin) % kBuffers; };
  const auto await = [&](int tile) {
    const int step = course.sums + tile - course.begin;
    wait_for(&warp.s.full[step % kBuffers], step / kBuffers % 2);
  };
  const auto powers = [&](int tile, float(&c)[32]) {
    if (tile * kTileKeys >= p.sink && tile * kTileKeys + kTileKeys - 1 <= warp.query0 - p.recent) {
      powers_of<true>(warp, tile, log_sum, c);
    } else {
      powers_of<false>(warp, tile, log_sum, c);
    }
  };
  if (course.begin < last) {
    float c[32];
    std::uint32_t high[4][4], low[4][4];
    await(course.begin);
    warp.scores(buffer(course.begin), c);
    wait_products<0>();
    settle(c);
    powers(course.begin, c);
    split(warp, buffer(course.begin), c, sums, high, low);
    for (int tile = course.begin + 1; tile < last; ++tile) {
      await(tile);
      warp.scores(buffer(tile), c);
      add_values(warp, buffer(tile - 1), high, low, sums);
      wait_products<1>();  // waits for the scores
      settle(c);
      powers(tile, c);
      wait_products<0>();
      settle(sums.values);
      warp.release(buffer(tile - 1));
      split(warp, buffer(tile), c, sums, high, low);
    }
    add_values(warp, buffer(last - 1), high, low, sums);
    wait_products<0>();
    settle(sums.values);
  }
  if (last > course.begin) warp.release(buffer(last - 1));
  for (int tile = max(last, course.begin); tile < course.end; ++tile) await(tile), warp.release(buffer(tile));
}

template <int D>
__device__ __forceinline__ void write(const GroupWarp<D>& warp, const GroupSums<D>& sums, int end) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    far::write_query<D>(warp.p, warp.head, warp.lane, warp.query(h), end, sums.seen[h], sums.norms[h],
                        [&](int n, int i) { return sums.values[4 * n + 2 * h + i]; });
  }
}

template <int D>
__device__ __forceinline__ void run(const FarPairsParams& p) {
  extern __shared__ __align__(16) unsigned char memory[];
  Buffers<D>& s = *reinterpret_cast<Buffers<D>*>(memory + (-shared_address(memory) & 1023));
  // The last queries see the most keys, so their blocks begin first.
  const int block = static_cast<int>(gridDim.y - 1 - blockIdx.y), first = p.first + block * kBlockQueries;
  const int end = min(p.first + p.count, first + kBlockQueries);
  const Course course(p, end - 1);
  if (threadIdx.x == 0) {
    for (int b = 0; b < kBuffers; ++b) init(&s.full[b], kCopiers), init(&s.empty[b], kMultipliers / 32);
  }
  if (threadIdx.x >= kMultipliers) {
    copy_swizzled<D, kBlockQueries>(s.q, p.q + blockIdx.x * D, p.q_stride, first, end, threadIdx.x - kMultipliers);
    far::commit();
    far::wait<0>();
    fence_writes();
  }
  __syncthreads();
  if (threadIdx.x >= kMultipliers) return copy_tiles(p, s, static_cast<int>(blockIdx.x), course);
  const GroupWarp<D> warp(p, s, first);
  float log_sum[2];
  log_sums(warp, course.sums, log_sum);
  GroupSums<D> sums;
  add_far(warp, course, log_sum, sums);
  write(warp, sums, end);
}

// Code for other GPUs is empty: far_pairs() does not call it there.
template <int D>
__global__ void __launch_bounds__(kAll, 1) far_kernel(const __grid_constant__ FarPairsParams p) {
  if constexpr (kCodeIsHopper && D > 0) run<D>(p);
}

template <int D>
cudaError_t launch(const FarPairsParams& p, cudaStream_t stream) {
  const int bytes = static_cast<int>(sizeof(Buffers<D>)) + 1024;
  const dim3 grid = grid_of(p.query_heads, blocks_of(p.count, kBlockQueries));
  return launch_with_memory<far_kernel<D>>(bytes, grid, kAll, stream, p);
}

}  // namespace

cudaError_t far_pairs_hopper(const FarPairsParams& p, cudaStream_t stream) {
  return p.head_dim == 64 ? launch<64>(p, stream) : launch<128>(p, stream);
}

}  // namespace oscar::kernels
