// One block for each (run, KV head): rotates 16 tokens at a time, a warp encodes a token, and at the end each thread
// assembles whole words of the page.
#include <algorithm>

#include "kernels/common/code_place.h"
#include "kernels/common/fragment_pages.h"
#include "kernels/common/shared_memory_limit.h"
#include "kernels/quantize/blocks.cuh"
#include "kernels/quantize/feedback.cuh"
#include "kernels/quantize/quantize_pages.h"
#include "kernels/quantize/uniform.cuh"

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

__device__ inline std::int64_t layer() { return blockIdx.z; }

// Channel i of the r-th token of a run.
__device__ inline float load(const QuantizePagesParams& p, int head, std::int64_t first_row, int r, int i) {
  const int d = p.layout.head_dim;
  if (p.windows != nullptr) {
    const std::int64_t ring = static_cast<std::int64_t>(p.ring_pages) * kPageTokens, sequence = first_row / ring;
    const int slot = static_cast<int>((first_row % ring + r) % ring);
    const int page = p.window_table[sequence * (p.sink_pages + p.ring_pages) + p.sink_pages + slot / kPageTokens];
    const std::uint8_t* window = p.windows + layer() * p.window_layer_bytes +
                                 (static_cast<std::int64_t>(page) * p.kv_heads + head) * window_page_bytes(d);
    return __bfloat162float(
        *reinterpret_cast<const __nv_bfloat16*>(window + window_offset(d, p.value_side, slot % kPageTokens, i)));
  }
  const std::int64_t index = ((first_row + r) * p.kv_heads + head) * d + i;
  return p.rows_bfloat16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.rows)[index])
                         : static_cast<const float*>(p.rows)[index];
}

// Channel i of the mean that is taken from the token at `position`.
__device__ inline float mean_at(const QuantizePagesParams& p, int head, std::int64_t position, int i) {
  const int d = p.layout.head_dim, half = d / 2;
  const float* mean = p.mean + head * d;
  if (p.rope_phases == nullptr) return mean[i];
  const float* phases = p.rope_phases + position * d;
  const float cosine = mean[i] * phases[i % half],
              sine = mean[i < half ? i + half : i - half] * phases[half + i % half];
  return i < half ? cosine - sine : cosine + sine;
}

// rotated[r][j] = BF16(sum over i, in order, of (x[r][i] - mean[i]) m[i][j])
template <int P>
__device__ void rotate(const QuantizePagesParams& p, int head, const PageRun& run, int skip, int count, Shared<P>& s) {
  const int d = p.layout.head_dim;
  const std::int64_t run_row = run.first_row;
  for (int e = threadIdx.x; e < count * d; e += kThreads) {
    const int r = e / d, i = e % d;
    const float x = load(p, head, run_row, skip + r, i);
    s.input[r][i] = p.mean != nullptr ? x - mean_at(p, head, run.first_position + skip + r, i) : x;
  }
  __syncthreads();
  const std::int64_t first_row = run_row + skip;
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

template <class T, int P>
__device__ void encode_uniform(const QuantizePagesParams& p, const float* x, int slot, std::uint8_t* codes,
                               std::uint8_t* page) {
  const int lane = threadIdx.x % 32, n = p.layout.quant_group;
  const std::int64_t first_channel = static_cast<std::int64_t>(blockIdx.y) * p.layout.head_dim;
  for (int g = 0; g < p.layout.quant_groups; ++g) {
    float part[P];
    int c[P];
#pragma unroll
    for (int j = 0; j < P; ++j) part[j] = lane + 32 * j < n ? x[g * n + lane + 32 * j] : 0.0f;
    const row::Range range = row::range_of(part, n);
    uniform::Metric metric;
    if (p.encoder == QuantizeEncoder::kFeedback && p.feedback.flat[blockIdx.y * p.layout.quant_groups + g] == 0) {
      metric = {p.feedback.matrix + (first_channel + g * n) * n, p.feedback.offset + first_channel + g * n};
    }
    const uniform::Params pair = p.encoder == QuantizeEncoder::kMinMax
                                     ? uniform::encode_minmax<T>(part, range, c)
                                     : uniform::encode_search<T>(part, n, range, p.value_side, metric, c);
#pragma unroll
    for (int j = 0; j < P; ++j) {
      if (lane + 32 * j < n) codes[g * n + lane + 32 * j] = static_cast<std::uint8_t>(c[j]);
    }
    if (lane == 0) {
      *reinterpret_cast<std::uint32_t*>(page + p.layout.param_byte(slot, g)) =
          pair.scale | static_cast<std::uint32_t>(pair.zero) << 16;
    }
  }
}

template <int P>
__device__ void encode_blocks(const QuantizePagesParams& p, int head, const float* x, int slot, std::uint8_t* codes,
                              std::uint8_t* page) {
  constexpr int kPart = (P + 3) / 4;
  const int lane = threadIdx.x % 32;
  for (int b = 0; b < p.layout.planes; ++b) {
    const PlaneLayout& plane = p.layout.plane[b];
    const int n = plane.channels;
    float part[kPart];
    int c[kPart];
#pragma unroll
    for (int j = 0; j < kPart; ++j) part[j] = lane + 32 * j < n ? x[plane.first_channel + lane + 32 * j] : 0.0f;
    const float* metric = nullptr;
    if (p.encoder == QuantizeEncoder::kFeedback && p.feedback.flat[head * 4 + plane.sigma] == 0) {
      metric = p.feedback.matrix + (static_cast<std::int64_t>(head) * p.layout.head_dim + plane.first_channel) * n;
    }
    const int e = blocks::encode_band(part, n, plane.width, p.sigma[(layer() * p.kv_heads + head) * 4 + plane.sigma],
                                      p.value_side, p.encoder != QuantizeEncoder::kMinMax, metric, c);
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      if (lane + 32 * j < n) codes[plane.first_channel + lane + 32 * j] = static_cast<std::uint8_t>(c[j]);
    }
    if (lane == 0) page[p.layout.param_byte(slot, b)] = static_cast<std::uint8_t>(e);
  }
}

// A warp encodes one token; its clipped row goes back to shared memory because groups cut it differently.
template <int P>
__device__ void encode(const QuantizePagesParams& p, int head, int position, int slot, float* x, std::uint8_t* codes,
                       std::uint8_t* page) {
  const int lane = threadIdx.x % 32, d = p.layout.head_dim;
  float value[P];
#pragma unroll
  for (int j = 0; j < P; ++j) value[j] = lane + 32 * j < d ? x[lane + 32 * j] : 0.0f;
  if (!(row::largest_magnitude(value, d) < __uint_as_float(0x7f800000u))) {
    if (lane == 0) atomicMin(p.bad + layer(), position * p.kv_heads + head);
#pragma unroll
    for (int j = 0; j < P; ++j) value[j] = 0.0f;
  }
  row::clip_row(value, d, p.clip[layer() * p.kv_heads + head]);
#pragma unroll
  for (int j = 0; j < P; ++j) {
    if (lane + 32 * j < d) x[lane + 32 * j] = value[j];
  }
  __syncwarp();
  switch (p.layout.params) {
    case ParamKind::kFloat16Pair:
      return encode_uniform<uniform::Float16, P>(p, x, slot, codes, page);
    case ParamKind::kBFloat16Pair:
      return encode_uniform<uniform::BFloat16, P>(p, x, slot, codes, page);
    case ParamKind::kScaleByte:
      return encode_blocks<P>(p, head, x, slot, codes, page);
  }
}

template <int P>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const __grid_constant__ QuantizePagesParams p) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared<P>& s = *reinterpret_cast<Shared<P>*>(memory);
  const PageRun run = p.runs[blockIdx.x];
  if (run.count <= 0) return;
  const int head = blockIdx.y, warp = threadIdx.x / 32;
  std::uint8_t* page =
      p.pages + layer() * p.page_layer_bytes + (static_cast<std::int64_t>(run.page) * p.kv_heads + head) * p.page_bytes;
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
  const int bytes = static_cast<int>(sizeof(Shared<P>));
  const cudaError_t error = allow_shared_memory<quantize_kernel<P>>(bytes);
  if (error != cudaSuccess) return error;
  quantize_kernel<P>
      <<<dim3(static_cast<unsigned>(p.run_count), static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(p.layers)),
         kThreads, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t quantize_pages(const QuantizePagesParams& p, cudaStream_t stream) {
  const int d = p.layout.head_dim;
  if (d < 1 || d > 512 || p.kv_heads < 1 || p.page_bytes % 4 != 0) return cudaErrorInvalidValue;
  if (p.pages != nullptr && p.layout.params == ParamKind::kScaleByte && p.sigma == nullptr)
    return cudaErrorInvalidValue;
  if (p.encoder == QuantizeEncoder::kFeedback &&
      (p.feedback.matrix == nullptr || p.feedback.offset == nullptr || p.feedback.flat == nullptr || p.layers > 1)) {
    return cudaErrorInvalidValue;
  }
  if (p.windows != nullptr && (p.matrix != nullptr || p.mean != nullptr || p.rotated != nullptr || p.ring_pages < 1)) {
    return cudaErrorInvalidValue;
  }
  if (p.layers < 1) return cudaErrorInvalidValue;
  if (p.run_count == 0) return cudaSuccess;
  if (d <= 64) return launch<2>(p, stream);
  if (d <= 96) return launch<3>(p, stream);
  if (d <= 128) return launch<4>(p, stream);
  if (d <= 256) return launch<8>(p, stream);
  return launch<16>(p, stream);
}

}  // namespace oscar::kernels
