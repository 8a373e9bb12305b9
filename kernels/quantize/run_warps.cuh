// Many runs of a few tokens that leave BF16 windows: each warp codes one run. The kernel with one block per run is
// right for full pages. It checks every code of the page for whether it belongs to the run; for a single token that
// takes many times as long as coding the token.
#pragma once

#include "kernels/quantize/encode_row.cuh"

namespace oscar::kernels {

inline constexpr int kRunWarps = 4;  // runs per block

// A warp's image of the planes of one side of a page: the bits to write, and a mask of them.
struct PlanesImage {
  std::uint32_t *bits, *mine;
  int words;

  __device__ __forceinline__ void clear(int lane) const {
    for (int i = lane; i < words; i += 32) bits[i] = mine[i] = 0;
    __syncwarp();
  }
  // Puts the codes of one token. A lane takes every eighth channel of 32 consecutive ones, which share a word in most
  // planes.
  __device__ __forceinline__ void put(const SideLayout& side, bool value_side, int token, const std::uint8_t* codes,
                                      int lane) const {
    for (int b = 0; b < side.planes; ++b) {
      const PlaneLayout plane = side.plane[b];
      const std::uint32_t ones = (1u << plane.width) - 1u;
      const int first_word = (plane.offset - side.plane[0].offset) / 4;
      for (int channel = lane / 8 * 32 + lane % 8; channel < plane.channels; channel += 128) {
        int word = -1;
        std::uint32_t code_bits = 0, own = 0;
        const auto flush = [&] {
          if (word >= 0) atomicOr(bits + word, code_bits), atomicOr(mine + word, own);
        };
#pragma unroll
        for (int k = 0; k < 32; k += 8) {
          if (channel + k >= plane.channels) break;
          const int bit = value_side ? plane.value_bit(token, channel + k) : plane.key_bit(token, channel + k);
          if (first_word + bit / 32 != word) {
            flush();
            word = first_word + bit / 32, code_bits = own = 0;
          }
          code_bits |= static_cast<std::uint32_t>(codes[plane.first_channel + channel + k]) << (bit % 32);
          own |= ones << (bit % 32);
        }
        flush();
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ void write(std::uint32_t* planes, int lane) const {
    for (int i = lane; i < words; i += 32) {
      const std::uint32_t own = mine[i];
      if (own == 0) continue;
      planes[i] = own == 0xffffffffu ? bits[i] : (planes[i] & ~own) | bits[i];
    }
  }
};

__host__ __device__ inline int image_words(const SideLayout& side) {
  return (side.param_offset - side.plane[0].offset) / 4;
}

// Shared memory of a warp: a row, its codes and the image.
template <int P>
__host__ __device__ constexpr int run_warp_bytes(int words) {
  return (4 + 1) * 32 * P + 8 * words;
}

// A warp codes one run. memory: run_warp_bytes<P>(words) bytes of shared memory, words at least image_words() of the
// side.
template <int P>
__device__ __forceinline__ void code_run(const QuantizePagesParams& p, int head, const PageRun& run,
                                         std::uint8_t* memory) {
  const int lane = threadIdx.x % 32, d = p.layout.head_dim, words = image_words(p.layout);
  float* row = reinterpret_cast<float*>(memory);
  std::uint32_t* bits = reinterpret_cast<std::uint32_t*>(row + 32 * P);
  const PlanesImage image{bits, bits + words, words};
  std::uint8_t* codes = reinterpret_cast<std::uint8_t*>(bits + 2 * words);
  std::uint8_t* page = pages_of_layer(p) + (static_cast<std::int64_t>(run.page) * p.kv_heads + head) * p.page_bytes;
  image.clear(lane);
  for (int r = 0; r < run.count; ++r) {
    const WindowRow source(p, head, run.first_row, r);
    const int slot = run.first_slot + r;
#pragma unroll
    for (int j = 0; j < P; ++j) {
      if (lane + 32 * j < d) row[lane + 32 * j] = source.load(p, lane + 32 * j);
    }
    __syncwarp();
    encode<P>(p, head, run.first_position + r, slot, row, codes, page);
    __syncwarp();
    image.put(p.layout, p.value_side, slot, codes, lane);
  }
  image.write(reinterpret_cast<std::uint32_t*>(page + p.layout.plane[0].offset), lane);
}

template <int P>
__global__ void __launch_bounds__(32 * kRunWarps) quantize_runs_kernel(const __grid_constant__ QuantizePagesParams p) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const int warp = threadIdx.x / 32, index = static_cast<int>(blockIdx.x) * kRunWarps + warp;
  if (index >= p.run_count) return;
  const PageRun run = p.runs[index];
  if (run.count <= 0) return;
  code_run<P>(p, blockIdx.y, run, memory + warp * run_warp_bytes<P>(image_words(p.layout)));
}

}  // namespace oscar::kernels
