// Runs of tokens that leave BF16 windows: one block per run. Its warps take the tokens in turn, straight from the
// windows. newest_tokens.cu serves steps, of which every sequence has one token.
#pragma once

#include "kernels/quantize/encode_row.cuh"
#include "kernels/quantize/plane_codes.cuh"

namespace oscar::kernels {

inline constexpr int kWindowRunThreads = 512;

template <int D>
struct WindowRunShared {
  float rows[kPageTokens][D];
  std::uint8_t codes[kPageTokens][D];
};

template <int D>
__global__ void __launch_bounds__(kWindowRunThreads) window_runs_kernel(const __grid_constant__ QuantizePagesParams p) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  WindowRunShared<D>& s = *reinterpret_cast<WindowRunShared<D>*>(memory);
  const PageRun run = p.runs[blockIdx.x];
  if (run.count <= 0) return;
  const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  std::uint8_t* page = p.pages + (static_cast<std::int64_t>(run.page) * p.kv_heads + head) * p.page_bytes;
  for (int r = warp; r < run.count; r += kWindowRunThreads / 32) {
    const WindowRow source(p, head, run.first_row, r);
    const int slot = run.first_slot + r;
#pragma unroll
    for (int i = lane; i < D; i += 32) s.rows[slot][i] = source.load(p, i);
    __syncwarp();
    encode<D / 32>(p, head, run.first_position + r, slot, s.rows[slot], s.codes[slot], page);
  }
  __syncthreads();
  write_codes<D>(p.layout, p.value_side, run.first_slot, run.count, s.codes, page);
}

// Whether it serves these parameters: head sizes whose rows fit a block's memory, one quantization group.
inline bool has_window_runs(const QuantizePagesParams& p) {
  const int d = p.layout.head_dim;
  return p.windows != nullptr && p.pages != nullptr && (d == 64 || d == 128 || d == 256) &&
         (p.layout.params == ParamKind::kScaleByte || p.layout.quant_groups == 1);
}

}  // namespace oscar::kernels
