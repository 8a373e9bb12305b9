// One block per (run, KV head): it rotates 16 tokens at a time, a warp encodes a token, and at the end each thread
// assembles complete words of the page.
#include <algorithm>

#include "kernels/common/code_place.h"
#include "kernels/common/launch_kernel.cuh"
#include "kernels/quantize/encode_row.cuh"
#include "kernels/quantize/quantize_pages.h"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kStep = 16;  // tokens rotated together

template <int P>
struct Shared {
  float input[kStep][32 * P];
  float rotated[kStep][32 * P];
  std::uint8_t codes[kPageTokens][32 * P];
};

// rotated[r][j] = BF16(sum over i, in order, of (x[r][i] - mean[i]) m[i][j])
template <int P>
__device__ void rotate(const QuantizePagesParams& p, int head, const PageRun& run, int skip, int count, Shared<P>& s) {
  const int d = p.layout.head_dim;
  for (int e = threadIdx.x; e < count * d; e += kThreads) {
    const int r = e / d, i = e % d;
    const float x = load(p, head, run.first_row, skip + r, i);
    s.input[r][i] = p.mean != nullptr ? x - mean_at(p, head, run.first_position + skip + r, i) : x;
  }
  __syncthreads();
  const std::int64_t first_row = static_cast<std::int64_t>(run.first_row) + skip;
  const float* m =
      p.matrix == nullptr ? nullptr : p.matrix + static_cast<std::int64_t>(p.matrix_heads == 1 ? 0 : head) * d * d;
  const int teams = max(kThreads / d, 1);  // threads that share a column
  for (int place = threadIdx.x; place < teams * d; place += kThreads) {
    const int column = place % d, team = place / d;
    for (int r0 = team * 4; r0 < count; r0 += teams * 4) {
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (m == nullptr) {
        for (int r = 0; r < 4; ++r) sum[r] = s.input[r0 + r][column];
      } else {
        for (int i = 0; i < d; ++i) {
          const float weight = __ldg(m + i * d + column);
#pragma unroll
          for (int r = 0; r < 4; ++r) sum[r] = sum[r] + s.input[r0 + r][i] * weight;
        }
      }
      for (int r = 0; r < 4 && r0 + r < count; ++r) {
        const __nv_bfloat16 rounded = __float2bfloat16_rn(sum[r]);
        s.rotated[r0 + r][column] = __bfloat162float(rounded);
        if (p.rotated != nullptr) {
          p.rotated[((first_row + r0 + r) * p.kv_heads + head) * d + column] = __bfloat16_as_ushort(rounded);
        }
      }
    }
  }
  __syncthreads();
}

template <int P>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const __grid_constant__ QuantizePagesParams p) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared<P>& s = *reinterpret_cast<Shared<P>*>(memory);
  const PageRun run = p.runs[blockIdx.x];
  if (run.count <= 0) return;
  const int head = blockIdx.y, warp = threadIdx.x / 32;
  std::uint8_t* page = p.pages + (static_cast<std::int64_t>(run.page) * p.kv_heads + head) * p.page_bytes;
  for (int first = 0; first < run.count; first += kStep) {
    const int count = min(kStep, run.count - first);
    rotate<P>(p, head, run, first, count, s);
    for (int r = p.pages == nullptr ? count : warp; r < count; r += kWarps) {
      const int slot = run.first_slot + first + r;
      encode<P>(p, head, run.first_position + first + r, slot, s.rotated[r], s.codes[slot], page);
    }
    __syncthreads();
  }
  for (int b = 0; p.pages != nullptr && b < p.layout.planes; ++b) {
    const PlaneLayout plane = p.layout.plane[b];
    std::uint32_t* words = reinterpret_cast<std::uint32_t*>(page + plane.offset);
    for (int index = threadIdx.x; index < plane.bytes() / 4; index += kThreads) {
      std::uint32_t word = 0, mine = 0;
      const std::uint32_t ones = (1u << plane.width) - 1u;
      for (int f = 0; f < 32 / plane.width; ++f) {
        const CodePlace at = code_at(plane, p.value_side, index, f);
        if (at.token < run.first_slot || at.token >= run.first_slot + run.count) continue;
        word |= static_cast<std::uint32_t>(s.codes[at.token][plane.first_channel + at.channel]) << (plane.width * f);
        mine |= ones << (plane.width * f);
      }
      if (mine == 0) continue;
      words[index] = mine == 0xffffffffu ? word : (words[index] & ~mine) | word;
    }
  }
}

template <int P>
cudaError_t launch(const QuantizePagesParams& p, cudaStream_t stream) {
  return launch_with<quantize_kernel<P>, Shared<P>>(grid_of(p.run_count, p.kv_heads), kThreads, stream, p);
}

}  // namespace

cudaError_t quantize_pages(const QuantizePagesParams& p, cudaStream_t stream) {
  const int d = p.layout.head_dim;
  if (d < 1 || d > 512 || p.kv_heads < 1 || p.page_bytes % 4 != 0) return cudaErrorInvalidValue;
  if (p.pages != nullptr && p.layout.params == ParamKind::kScaleByte && p.sigma == nullptr)
    return cudaErrorInvalidValue;
  if (p.windows != nullptr && (p.matrix != nullptr || p.mean != nullptr || p.rotated != nullptr || p.ring_pages < 1)) {
    return cudaErrorInvalidValue;
  }
  if (p.run_count == 0) return cudaSuccess;
  if (d <= 64) return launch<2>(p, stream);
  if (d <= 96) return launch<3>(p, stream);
  if (d <= 128) return launch<4>(p, stream);
  if (d <= 256) return launch<8>(p, stream);
  return launch<16>(p, stream);
}

}  // namespace oscar::kernels
