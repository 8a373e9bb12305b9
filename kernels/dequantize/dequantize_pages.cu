// One block per (run, KV head): codes are unpacked to shared memory word by word, then rows are written in order.
#include "kernels/common/code_place.h"
#include "kernels/dequantize/dequantize_pages.h"
#include "kernels/quantize/blocks.cuh"
#include "kernels/quantize/uniform.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256;

__device__ inline void store(const DequantizePagesParams& p, std::int64_t index, float value) {
  if (p.rows_bfloat16) {
    static_cast<__nv_bfloat16*>(p.rows)[index] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(p.rows)[index] = value;
  }
}

// (q - z) s
template <class T>
__device__ inline float uniform_value(const DequantizePagesParams& p, const std::uint8_t* page, int slot, int channel,
                                      int code) {
  const std::uint32_t pair =
      *reinterpret_cast<const std::uint32_t*>(page + p.layout.param_byte(slot, channel / p.layout.quant_group));
  const float s = T::value(static_cast<std::uint16_t>(pair)), z = T::value(static_cast<std::uint16_t>(pair >> 16));
  return (static_cast<float>(code) - z) * s;
}

__global__ void __launch_bounds__(kThreads) dequantize_kernel(const __grid_constant__ DequantizePagesParams p) {
  extern __shared__ std::uint8_t codes[];  // [64, d]
  const PageRun run = p.runs[blockIdx.x];
  if (run.count <= 0) return;
  const int head = blockIdx.y, d = p.layout.head_dim;
  const std::uint8_t* page = p.pages + (static_cast<std::int64_t>(run.page) * p.kv_heads + head) * p.page_bytes;
  for (int b = 0; b < p.layout.planes; ++b) {
    const PlaneLayout plane = p.layout.plane[b];
    const std::uint32_t* words = reinterpret_cast<const std::uint32_t*>(page + plane.offset);
    for (int index = threadIdx.x; index < plane.bytes() / 4; index += kThreads) {
      const std::uint32_t word = words[index];
      for (int f = 0; f < 32 / plane.width; ++f) {
        const CodePlace at = code_at(plane, p.value_side, index, f);
        codes[at.token * d + plane.first_channel + at.channel] =
            static_cast<std::uint8_t>((word >> (plane.width * f)) & ((1u << plane.width) - 1u));
      }
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < run.count * d; e += kThreads) {
    const int slot = run.first_slot + e / d, channel = e % d, code = codes[slot * d + channel];
    float value = 0.0f;
    if (p.layout.params == ParamKind::kFloat16Pair) {
      value = uniform_value<uniform::Float16>(p, page, slot, channel, code);
    } else if (p.layout.params == ParamKind::kBFloat16Pair) {
      value = uniform_value<uniform::BFloat16>(p, page, slot, channel, code);
    } else {
      for (int b = 0; b < p.layout.planes; ++b) {
        const PlaneLayout& plane = p.layout.plane[b];
        if (channel < plane.first_channel || channel >= plane.first_channel + plane.channels) continue;
        const int byte = static_cast<std::int8_t>(page[p.layout.param_byte(slot, b)]);
        value = (static_cast<float>(2 * code + 1 - (1 << plane.width)) * 0.5f) *
                blocks::scale_value(byte, p.sigma[head * 4 + plane.sigma]);
      }
    }
    store(p, ((static_cast<std::int64_t>(run.first_row) + e / d) * p.kv_heads + head) * d + channel, value);
  }
}

}  // namespace

cudaError_t dequantize_pages(const DequantizePagesParams& p, cudaStream_t stream) {
  const int d = p.layout.head_dim;
  if (d < 1 || d > 512 || p.kv_heads < 1 || p.page_bytes % 4 != 0) return cudaErrorInvalidValue;
  if (p.layout.params == ParamKind::kScaleByte && p.sigma == nullptr) return cudaErrorInvalidValue;
  if (p.run_count == 0) return cudaSuccess;
  dequantize_kernel<<<dim3(static_cast<unsigned>(p.run_count), static_cast<unsigned>(p.kv_heads)), kThreads,
                      static_cast<std::size_t>(kPageTokens * d), stream>>>(p);
  return cudaGetLastError();
}

}  // namespace oscar::kernels
