// One warp per (sequence, KV head, side of a layer); a block has one side.
#include "kernels/quantize/newest_tokens.h"

#include "kernels/common/launch_kernel.cuh"
#include "kernels/quantize/encode_row.cuh"

namespace oscar::kernels {
namespace {

constexpr int kWarps = 4;

// Puts the codes of one token into the planes of a page. No two lanes have codes in one word (page_layout.h): a lane
// has two channels of eight of a key, or one of a value.
__device__ __forceinline__ void write_token(const SideLayout& side, bool value_side, int token,
                                            const std::uint8_t* codes, std::uint8_t* page) {
  const int lanes = value_side ? 8 : 4, each = 8 / lanes;
  for (int item = static_cast<int>(threadIdx.x) % 32; item < lanes * side.planes; item += 32) {
    const PlaneLayout plane = side.plane[item / lanes];
    const std::uint32_t ones = (1u << plane.width) - 1u;
    std::uint32_t* words = reinterpret_cast<std::uint32_t*>(page + plane.offset);
    int word = -1;
    std::uint32_t bits = 0, own = 0;
    const auto flush = [&] {
      if (word >= 0) words[word] = own == 0xffffffffu ? bits : (words[word] & ~own) | bits;
    };
    for (int k = 0; k < plane.channels / lanes; ++k) {
      const int channel = k / each * 8 + item % lanes * each + k % each;
      const int bit = value_side ? plane.value_bit(token, channel) : plane.key_bit(token, channel);
      if (bit / 32 != word) {
        flush();
        word = bit / 32, bits = own = 0;
      }
      bits |= static_cast<std::uint32_t>(codes[plane.first_channel + channel]) << (bit % 32);
      own |= ones << (bit % 32);
    }
    flush();
  }
}

template <int D>
__global__ void __launch_bounds__(32 * kWarps) newest_kernel(const __grid_constant__ NewestTokensParams p) {
  __shared__ float rows[kWarps][D];
  __shared__ std::uint8_t codes[kWarps][D];
  __shared__ __align__(16) std::uint8_t held[sizeof(QuantizePagesParams)];
  QuantizePagesParams& side = *reinterpret_cast<QuantizePagesParams*>(held);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
  const int sequence = static_cast<int>(blockIdx.x) * kWarps + warp;
  const int position = sequence < p.batch ? p.lengths[sequence] - 1 : -1, body = position - p.sink;
  if (!__syncthreads_or(body >= 0)) return;
  if (threadIdx.x == 0) {
    const NewestSide& from = p.sides != nullptr ? p.sides[blockIdx.z] : p.layer[blockIdx.z];
    side.layout = from.layout, side.value_side = from.value_side, side.page_bytes = from.page_bytes;
    side.pages = from.pages, side.windows = from.windows, side.window_table = p.window_table;
    side.clip = from.clip, side.sigma = from.sigma, side.bad = from.bad;
    side.kv_heads = p.kv_heads, side.sink_pages = p.sink_pages, side.ring_pages = p.ring_pages;
    side.encoder = p.encoder;
  }
  __syncthreads();
  if (body < 0 || side.layout.planes == 0) return;
  const int ring = p.ring_pages * kPageTokens, slot = body % kPageTokens;
  const WindowRow source(side, head, sequence * ring + position % ring, 0);
#pragma unroll
  for (int j = lane; j < D; j += 32) rows[warp][j] = source.load(side, j);
  const std::int64_t id = p.page_table[static_cast<std::int64_t>(sequence) * p.max_pages + body / kPageTokens];
  std::uint8_t* page = side.pages + (id * p.kv_heads + head) * side.page_bytes;
  __syncwarp();
  encode<D / 32>(side, head, position, slot, rows[warp], codes[warp], page);
  __syncwarp();
  write_token(side.layout, side.value_side, slot, codes[warp], page);
}

}  // namespace

cudaError_t newest_tokens(const NewestTokensParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.ring_pages < 1) return cudaErrorInvalidValue;
  if (p.batch == 0 || p.side_count == 0) return cudaSuccess;
  return for_fast_head_dim(p.head_dim, [&]<int D>() {
    return launch_kernel<newest_kernel<D>>(grid_of(blocks_of(p.batch, kWarps), p.kv_heads, p.side_count), 32 * kWarps,
                                           stream, p);
  });
}

}  // namespace oscar::kernels
