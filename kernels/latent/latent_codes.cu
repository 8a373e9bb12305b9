// A warp has one token. No two tokens have codes in one word, because a band has 128 channels (page_layout.h).
#include "kernels/latent/latent_codes.h"

#include "kernels/common/launch_kernel.cuh"
#include "kernels/quantize/encode_row.cuh"

namespace oscar::kernels {
namespace {

constexpr int kWarps = 8, kPairs = kLatentChannels / 2, kRopePairs = kRopeChannels / 2;
constexpr int kBand = kLatentChannels / 4;

// The word of a plane with the codes of a token that are word `index` of its 4 w: channels 8 (16 / w (index / 4) + j)
// + 2 t + h for t = index % 4, field j and half h.
__device__ __forceinline__ int word_place(const PlaneLayout& plane, int slot, int index) {
  const int v = plane.vector_words(), word = slot / 8 * plane.width + index / 4, lane = 4 * (slot % 8) + index % 4;
  return word / v * 32 * v + lane * v + word % v;
}
constexpr bool word_place_agrees(int width) {
  const PlaneLayout plane{0, kBand, width, 0, 0};
  const int v = plane.vector_words(), fields = 16 / width;
  for (int slot = 0; slot < kPageTokens; slot += 5)
    for (int channel = 0; channel < kBand; channel += 3) {
      const int group = channel / 8, word = slot / 8 * width + group / fields;
      const int lane = 4 * (slot % 8) + channel % 8 / 2, place = word / v * 32 * v + lane * v + word % v;
      if (plane.key_bit(slot, channel) != 32 * place + 16 * (channel % 2) + width * (group % fields)) return false;
    }
  return true;
}
static_assert(word_place_agrees(1) && word_place_agrees(2) && word_place_agrees(4));

// Codes of the row x [512] of shared memory, which is clipped in place. All lanes of a warp call it.
__device__ __forceinline__ void code_token(const QuantizePagesParams& side, bool refined, int position, int slot,
                                           float* x, std::uint8_t* codes, std::uint8_t* page) {
  const int lane = threadIdx.x % 32;
  encode<kLatentChannels / 32>(side, 0, position, slot, x, codes, page, refined);
  __syncwarp();
  for (int b = 0; b < side.layout.planes; ++b) {
    const PlaneLayout plane = side.layout.plane[b];
    if (lane >= 4 * plane.width) continue;
    const int fields = 16 / plane.width;
    std::uint32_t word = 0;
    for (int f = 0; f < 2 * fields; ++f) {
      const int channel = 8 * (lane / 4 * fields + f % fields) + 2 * (lane % 4) + f / fields;
      word |= static_cast<std::uint32_t>(codes[plane.first_channel + channel]) << (plane.width * f);
    }
    reinterpret_cast<std::uint32_t*>(page + plane.offset)[word_place(plane, slot, lane)] = word;
  }
}

struct Rows {
  float x[kWarps][kLatentChannels];
  std::uint8_t codes[kWarps][kLatentChannels];
};

__device__ __forceinline__ void fill_side(QuantizePagesParams& to, const NewestSide& from, QuantizeEncoder encoder) {
  to.layout = from.layout, to.value_side = true, to.clip = from.clip, to.sigma = from.sigma, to.bad = from.bad;
  to.kv_heads = 1, to.encoder = encoder;
}

__device__ __forceinline__ void set_pair(float* x, int pair, std::uint32_t bits) {
  x[2 * pair] = __uint_as_float(bits << 16), x[2 * pair + 1] = __uint_as_float(bits & 0xffff0000u);
}

__device__ __forceinline__ std::uint32_t& word_at(std::uint8_t* bytes, int at) {
  return *reinterpret_cast<std::uint32_t*>(bytes + at);
}
__device__ __forceinline__ std::uint32_t word_at(const std::uint8_t* bytes, int at) {
  return *reinterpret_cast<const std::uint32_t*>(bytes + at);
}
__device__ __forceinline__ std::uint32_t pair_of(const std::uint16_t* row, int pair) {
  return reinterpret_cast<const std::uint32_t*>(row)[pair];
}

__global__ void __launch_bounds__(32 * kWarps) codes_kernel(const __grid_constant__ LatentCodesParams p) {
  __shared__ Rows s;
  __shared__ __align__(16) std::uint8_t held[sizeof(QuantizePagesParams)];
  QuantizePagesParams& side = *reinterpret_cast<QuantizePagesParams*>(held);
  if (threadIdx.x == 0) fill_side(side, p.side, p.encoder);
  __syncthreads();
  const NewRun run = p.runs[blockIdx.x];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t rope_offset = p.side.layout.end();
  for (int r = warp; r < run.count; r += kWarps) {
    const std::uint16_t* row = p.rows + (static_cast<std::int64_t>(run.first_row) + r) * p.row_stride;
    const std::uint16_t* pe = p.pe + (static_cast<std::int64_t>(run.first_row) + r) * p.pe_stride;
    const int position = run.first_position + r, slot = run.first_slot + r, in_window = position % kPageTokens;
    if (run.window_page >= 0) {
      std::uint8_t* window = p.windows + static_cast<std::int64_t>(run.window_page) * kLatentWindowBytes;
      for (int i = lane; i < kPairs; i += 32) word_at(window, latent_window_byte(in_window, 2 * i)) = pair_of(row, i);
      word_at(window, latent_window_byte(in_window, kLatentChannels + 2 * lane)) = pair_of(pe, lane);
    }
    if (run.page < 0) continue;
    std::uint8_t* page = p.side.pages + static_cast<std::int64_t>(run.page) * p.side.page_bytes;
    word_at(page + rope_offset, operand_byte(kPageTokens, slot, 2 * lane)) = pair_of(pe, lane);
    for (int i = lane; i < kPairs; i += 32) set_pair(s.x[warp], i, pair_of(row, i));
    __syncwarp();
    code_token(side, p.side.refined, position, slot, s.x[warp], s.codes[warp], page);
    __syncwarp();
  }
}
static_assert(kRopePairs == 32);

__global__ void __launch_bounds__(32 * kWarps) newest_kernel(const __grid_constant__ NewestTokensParams p) {
  __shared__ Rows s;
  __shared__ __align__(16) std::uint8_t held[sizeof(QuantizePagesParams)];
  QuantizePagesParams& side = *reinterpret_cast<QuantizePagesParams*>(held);
  const NewestSide& from = p.sides[blockIdx.y];
  if (threadIdx.x == 0) fill_side(side, from, p.encoder);
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int sequence = static_cast<int>(blockIdx.x) * kWarps + warp;
  const int position = sequence < p.batch ? p.lengths[sequence] - 1 : -1, body = position - p.sink;
  if (body < 0) return;
  const int place = position % (p.ring_pages * kPageTokens), slot = body % kPageTokens;
  const std::int64_t window_page =
      p.window_table[sequence * (p.sink_pages + p.ring_pages) + p.sink_pages + place / kPageTokens];
  const std::uint8_t* window = from.windows + window_page * kLatentWindowBytes;
  const std::int64_t id = p.page_table[static_cast<std::int64_t>(sequence) * p.max_pages + body / kPageTokens];
  std::uint8_t* page = from.pages + id * from.page_bytes;
  word_at(page + from.layout.end(), operand_byte(kPageTokens, slot, 2 * lane)) =
      word_at(window, latent_window_byte(place % kPageTokens, kLatentChannels + 2 * lane));
  for (int i = lane; i < kPairs; i += 32) {
    set_pair(s.x[warp], i, word_at(window, latent_window_byte(place % kPageTokens, 2 * i)));
  }
  __syncwarp();
  code_token(side, from.refined, position, slot, s.x[warp], s.codes[warp], page);
}

struct Past {
  LatentPastParams p;
  LatentPage layout;
};

// Codes of a token as BF16 channels. first: what the first block decodes to, before another refines it.
__device__ __forceinline__ void read_token(const Past& a, int slot, const std::uint8_t* page, float* first,
                                           std::uint16_t* to) {
  const LatentPastParams& p = a.p;
  const LatentPage& layout = a.layout;
  const int lane = threadIdx.x % 32;
  for (int b = 0, index = 0; b < 4; ++b) {
    if (p.widths[b] == 0) {
      for (int i = lane; i < kBand; i += 32) to[b * kBand + i] = 0;
      continue;
    }
    const PlaneLayout plane = layout.codes.plane[index];
    const int byte = static_cast<std::int8_t>(page[layout.codes.param_byte(slot, index)]), fields = 16 / plane.width;
    ++index;
    if (p.refined && b == 3) {
      for (int i = lane; i < kBand; i += 32) to[3 * kBand + i] = 0;
      __syncwarp();
    }
    if (lane >= 4 * plane.width) continue;
    const float scale = blocks::scale_value(byte, p.sigma[b]);
    const std::uint32_t word =
        reinterpret_cast<const std::uint32_t*>(page + plane.offset)[word_place(plane, slot, lane)];
    for (int f = 0; f < 2 * fields; ++f) {
      const int channel = 8 * (lane / 4 * fields + f % fields) + 2 * (lane % 4) + f / fields;
      const int code = static_cast<int>(word >> (plane.width * f)) & ((1 << plane.width) - 1);
      float value = (static_cast<float>(2 * code + 1 - (1 << plane.width)) * 0.5f) * scale;
      if (p.refined && b == 0) {
        first[channel] = value;
        continue;
      }
      if (p.refined && b == 3) value = first[channel] + value;
      to[(p.refined && b == 3 ? 0 : b * kBand) + channel] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
    }
  }
}

__global__ void __launch_bounds__(32 * kWarps) past_kernel(const __grid_constant__ Past a) {
  const LatentPastParams& p = a.p;
  __shared__ __align__(16) std::uint16_t rows[kWarps][kLatentChannels];
  __shared__ float first[kWarps][kBand];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (row >= p.rows) return;
  const int request = p.sequence[row], position = p.starts[request] + row - p.firsts[request];
  std::uint16_t* out = p.out + row * p.out_stride;
  std::uint32_t* out_pe = reinterpret_cast<std::uint32_t*>(out + kLatentChannels);
  if (position >= p.sink && position < p.ends[request]) {
    const int body = position - p.sink, slot = body % kPageTokens;
    const std::int64_t id = p.page_table[request * p.table_stride + body / kPageTokens];
    const std::uint8_t* page = p.pages + id * p.page_stride;
    read_token(a, slot, page, first[warp], rows[warp]);
    out_pe[lane] = word_at(page, a.layout.rope_byte(slot, 2 * lane));
    __syncwarp();
    for (int i = lane; i < kLatentChannels / 8; i += 32) {
      reinterpret_cast<uint4*>(out)[i] = reinterpret_cast<const uint4*>(rows[warp])[i];
    }
    return;
  }
  const int place = position < p.sink ? position : position % (p.ring_pages * kPageTokens);
  const int column = place / kPageTokens + (position < p.sink ? 0 : p.sink_pages), slot = place % kPageTokens;
  const std::int64_t id = p.window_table[request * (p.sink_pages + p.ring_pages) + column];
  const std::uint8_t* window = p.windows + id * kLatentWindowBytes;
  for (int i = lane; i < kPairs; i += 32) {
    reinterpret_cast<std::uint32_t*>(out)[i] = word_at(window, latent_window_byte(slot, 2 * i));
  }
  out_pe[lane] = word_at(window, latent_window_byte(slot, kLatentChannels + 2 * lane));
}

bool is_latent(const NewestSide& side) {
  const SideLayout& layout = side.layout;
  const bool ends = layout.planes > 1 && layout.plane[0].sigma == 0 && layout.plane[layout.planes - 1].sigma == 3;
  return layout.head_dim == kLatentChannels && layout.params == ParamKind::kScaleByte && (ends || !side.refined);
}

}  // namespace

cudaError_t latent_codes(const LatentCodesParams& p, cudaStream_t stream) {
  if (!is_latent(p.side) || p.row_stride % 2 != 0 || p.pe_stride % 2 != 0 || p.side.page_bytes % 4 != 0) {
    return cudaErrorInvalidValue;
  }
  if (p.run_count == 0) return cudaSuccess;
  return launch_kernel<codes_kernel>(grid_of(p.run_count), 32 * kWarps, stream, p);
}

cudaError_t newest_latents(const NewestTokensParams& p, cudaStream_t stream) {
  if (p.ring_pages < 1) return cudaErrorInvalidValue;
  if (p.batch == 0 || p.side_count == 0) return cudaSuccess;
  return launch_kernel<newest_kernel>(grid_of(blocks_of(p.batch, kWarps), p.side_count), 32 * kWarps, stream, p);
}

cudaError_t latent_past(const LatentPastParams& p, cudaStream_t stream) {
  const bool coarse = p.refined && (p.widths[0] == 0 || p.widths[3] == 0);
  if (p.ring_pages < 1 || p.out_stride % 8 != 0 || p.page_stride % 4 != 0 || coarse) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  return launch_kernel<past_kernel>(grid_of(blocks_of(p.rows, kWarps)), 32 * kWarps, stream,
                                    Past{p, latent_page(p.widths)});
}

}  // namespace oscar::kernels
