// One block per (tile, KV head), or two for head size 512. Codes or window rows become BF16 rows in shared memory, and
// tensor cores bring them out of the cache basis. The mean is added on output.
#include "kernels/chunks/past_rows.h"
#include "kernels/chunks/tile_product.cuh"
#include "kernels/common/code_place.h"
#include "kernels/common/fragment_pages.h"
#include "kernels/common/launch_kernel.cuh"
#include "kernels/common/rope_mean.h"
#include "kernels/quantize/blocks.cuh"
#include "kernels/quantize/plane_codes.cuh"
#include "kernels/quantize/uniform.cuh"

namespace oscar::kernels {
namespace {

template <int D>
struct Shared {
  using Product = TileProduct<D>;
  union {
    __nv_bfloat16 rows[Product::kTokens * Product::kRow];
    float sum[Product::kTokens * Product::kSumRow];
  };
  float scale[kMaxPlanes][kPageTokens], zero[kPageTokens];
};

// The tokens of a page that a block takes: all, or one half.
template <int D>
struct Part {
  static constexpr int kTokens = TileProduct<D>::kTokens, kParts = kPageTokens / kTokens;

  __device__ static int index() { return kParts == 1 ? 0 : static_cast<int>(blockIdx.z); }
  __device__ static int first() { return kTokens * index(); }
  // The part's tokens of a tile; their count is not positive if there are none.
  __device__ static PastTile of(PastTile tile) {
    if constexpr (kParts == 1) return tile;
    const int begin = max(tile.slot, first()), end = min(tile.slot + tile.count, first() + kTokens);
    const int skipped = begin - tile.slot;
    tile.slot = begin, tile.count = end - begin, tile.out_row += skipped, tile.position += skipped;
    if (static_cast<TileKind>(tile.kind) == TileKind::kNew) tile.page += skipped;
    return tile;
  }
};

// Whether the words of tokens 0 to 31 of a plane come before those of the others.
constexpr bool halves_follow(const PlaneLayout& plane, bool value_side) {
  const int words = plane.bytes() / 4;
  for (int index = 0; index < words; index += 3) {
    for (int f = 0; f < 32 / plane.width; ++f) {
      if (code_at(plane, value_side, index, f).token / 32 != 2 * index / words) return false;
    }
  }
  return true;
}

template <int D>
__device__ void copy_new(const PastRowsParams& p, const PastTile& tile, int head) {
  constexpr int kVectors = D / 8;  // 16-byte vectors per row
  for (int e = threadIdx.x; e < tile.count * kVectors; e += TileProduct<D>::kThreads) {
    const int r = e / kVectors, i = e % kVectors;
    const std::int64_t from = (static_cast<std::int64_t>(tile.page) + r) * p.row_stride + head * D + 8 * i;
    const std::int64_t to = ((static_cast<std::int64_t>(tile.out_row) + r) * p.kv_heads + head) * D + 8 * i;
    *reinterpret_cast<uint4*>(p.out + to) = *reinterpret_cast<const uint4*>(p.rows + from);
  }
}

// Scales and zero points of all tokens of a page.
template <int D>
__device__ void load_scales(const PastRowsParams& p, const std::uint8_t* page, int head, Shared<D>& s) {
  const int token = static_cast<int>(threadIdx.x) % kPageTokens, plane = static_cast<int>(threadIdx.x) / kPageTokens;
  if (p.layout.params == ParamKind::kScaleByte) {
    if (plane >= p.layout.planes) return;
    const int byte = static_cast<std::int8_t>(page[p.layout.param_byte(token, plane)]);
    s.scale[plane][token] = blocks::scale_value(byte, p.sigma[head * 4 + p.layout.plane[plane].sigma]);
  } else if (plane == 0) {
    const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(page + p.layout.param_byte(token, 0));
    const std::uint16_t scale = static_cast<std::uint16_t>(pair), zero = static_cast<std::uint16_t>(pair >> 16);
    const bool half = p.layout.params == ParamKind::kFloat16Pair;
    s.scale[0][token] = half ? uniform::Float16::value(scale) : uniform::BFloat16::value(scale);
    s.zero[token] = half ? uniform::Float16::value(zero) : uniform::BFloat16::value(zero);
  }
}

template <int D, int kChannels, int kWidth>
__device__ void read_plane(const PastRowsParams& p, const std::uint8_t* page, int b, Shared<D>& s) {
  constexpr PlaneLayout kPlane{0, kChannels, kWidth, 0, 0};
  constexpr std::uint32_t kOnes = (1u << kWidth) - 1u;
  constexpr float kMiddle = static_cast<float>(kOnes);
  const bool bands = p.layout.params == ParamKind::kScaleByte;
  const PlaneLayout& plane = p.layout.plane[b];
  const std::uint32_t* words = reinterpret_cast<const std::uint32_t*>(page + plane.offset);
  constexpr int kWords = kPlane.bytes() / 4 / Part<D>::kParts;
  static_assert(Part<D>::kParts == 1 || (halves_follow(kPlane, false) && halves_follow(kPlane, true)));
  const int begin = Part<D>::index() * kWords;
  for (int index = begin + threadIdx.x; index < begin + kWords; index += Shared<D>::Product::kThreads) {
    const std::uint32_t word = words[index];
#pragma unroll
    for (int f = 0; f < 32 / kWidth; ++f) {
      const CodePlace at = p.value_side ? code_at(kPlane, true, index, f) : code_at(kPlane, false, index, f);
      const float code = static_cast<float>(word >> (kWidth * f) & kOnes);
      const float value = bands ? ((2.0f * code - kMiddle) * 0.5f) * s.scale[b][at.token]
                                : (code - s.zero[at.token]) * s.scale[0][at.token];
      s.rows[(at.token - Part<D>::first()) * Shared<D>::Product::kRow + plane.first_channel + at.channel] =
          __float2bfloat16_rn(value);
    }
  }
}

template <int D>
__device__ void load_codes(const PastRowsParams& p, const PastTile& tile, int head, Shared<D>& s) {
  const std::uint8_t* page = p.pages + (static_cast<std::int64_t>(tile.page) * p.kv_heads + head) * p.page_bytes;
  load_scales<D>(p, page, head, s);
  const bool bands = p.layout.params == ParamKind::kScaleByte;
  if (bands && p.layout.planes < 4) {  // blocks of width 0 decode to zeros
    for (int e = threadIdx.x; e < Shared<D>::Product::kTokens * Shared<D>::Product::kRow;
         e += Shared<D>::Product::kThreads) {
      s.rows[e] = __float2bfloat16_rn(0.0f);
    }
  }
  __syncthreads();
  for_each_plane<D>(p.layout,
                    [&]<int kChannels, int kWidth>(int b) { read_plane<D, kChannels, kWidth>(p, page, b, s); });
}

template <int D>
__device__ void load_window(const PastRowsParams& p, const PastTile& tile, int head, Shared<D>& s) {
  const std::uint8_t* page =
      p.windows + (static_cast<std::int64_t>(tile.page) * p.kv_heads + head) * window_page_bytes(D);
  for (int e = threadIdx.x; e < tile.count * D; e += Shared<D>::Product::kThreads) {
    const int token = tile.slot + e / D, channel = e % D;
    s.rows[(token - Part<D>::first()) * Shared<D>::Product::kRow + channel] =
        *reinterpret_cast<const __nv_bfloat16*>(page + window_offset(D, p.value_side, token, channel));
  }
}

template <int D>
__global__ void __launch_bounds__(TileProduct<D>::kThreads) past_rows_kernel(const __grid_constant__ PastRowsParams p) {
  using Product = TileProduct<D>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  Shared<D>& s = *reinterpret_cast<Shared<D>*>(memory);
  const PastTile tile = Part<D>::of(p.tiles[blockIdx.x]);
  const int head = blockIdx.y, first = tile.slot - Part<D>::first();  // row of the first token
  if (tile.count <= 0) return;
  const TileKind kind = static_cast<TileKind>(tile.kind);
  if (kind == TileKind::kNew) return copy_new<D>(p, tile, head);
  if (kind == TileKind::kCodes) {
    load_codes<D>(p, tile, head, s);
  } else {
    load_window<D>(p, tile, head, s);
  }
  __syncthreads();
  const std::int64_t of = static_cast<std::int64_t>(p.matrix_heads == 1 ? 0 : head) * 2 * D * D;
  Product::multiply(s.rows, nullptr, reinterpret_cast<const __nv_bfloat16*>(p.matrix) + of, first, first + tile.count,
                    s.sum);
  for (int e = threadIdx.x; e < tile.count * (D / 2); e += Product::kThreads) {
    const int r = e / (D / 2), i = e % (D / 2) * 2;
    float2 x = *reinterpret_cast<const float2*>(s.sum + (first + r) * Product::kSumRow + i);
    if (p.mean != nullptr) {
      const float* phases =
          p.rope_phases == nullptr ? nullptr : p.rope_phases + (static_cast<std::int64_t>(tile.position) + r) * D;
      x.x += mean_channel(p.mean + head * D, phases, D, i), x.y += mean_channel(p.mean + head * D, phases, D, i + 1);
    }
    const std::int64_t to = ((static_cast<std::int64_t>(tile.out_row) + r) * p.kv_heads + head) * D + i;
    *reinterpret_cast<__nv_bfloat162*>(p.out + to) = __floats2bfloat162_rn(x.x, x.y);
  }
}

}  // namespace

cudaError_t past_rows(const PastRowsParams& p, cudaStream_t stream) {
  const bool bands = p.layout.params == ParamKind::kScaleByte;
  if (p.kv_heads < 1 || p.page_bytes % 4 != 0 || p.row_stride % 8 != 0 || (bands && p.sigma == nullptr) ||
      (!bands && p.layout.quant_groups != 1) || (p.rope_phases != nullptr && p.mean == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (p.tile_count == 0) return cudaSuccess;
  return for_fast_head_dim(p.layout.head_dim, [&]<int D>() {
    return launch_with<past_rows_kernel<D>, Shared<D>>(grid_of(p.tile_count, p.kv_heads, Part<D>::kParts),
                                                       TileProduct<D>::kThreads, stream, p);
  });
}

}  // namespace oscar::kernels
