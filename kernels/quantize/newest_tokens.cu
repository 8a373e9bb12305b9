// One warp per (sequence, KV head, side of a layer); a block has one side.
#include "kernels/quantize/newest_tokens.h"

#include "kernels/common/launch_kernel.cuh"
#include "kernels/quantize/run_warps.cuh"

namespace oscar::kernels {
namespace {

// The newest token of a sequence, or a run without tokens.
__device__ __forceinline__ PageRun run_of(const NewestTokensParams& p, int sequence) {
  const int position = p.lengths[sequence] - 1, body = position - p.sink;
  if (body < 0) return PageRun{};
  const int ring = p.ring_pages * kPageTokens;
  return {sequence * ring + position % ring, 1,
          p.page_table[static_cast<std::int64_t>(sequence) * p.max_pages + body / kPageTokens], body % kPageTokens,
          position};
}

template <int D>
__global__ void __launch_bounds__(32 * kRunWarps) newest_kernel(const __grid_constant__ NewestTokensParams p) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ __align__(16) std::uint8_t held[sizeof(QuantizePagesParams)];
  QuantizePagesParams& side = *reinterpret_cast<QuantizePagesParams*>(held);
  const int warp = threadIdx.x / 32, sequence = static_cast<int>(blockIdx.x) * kRunWarps + warp;
  const PageRun run = sequence < p.batch ? run_of(p, sequence) : PageRun{};
  if (!__syncthreads_or(run.count)) return;
  if (threadIdx.x == 0) {
    const NewestSide& from = p.sides[blockIdx.z];
    side.layout = from.layout, side.value_side = from.value_side, side.page_bytes = from.page_bytes;
    side.pages = from.pages, side.windows = from.windows, side.window_table = p.window_table;
    side.clip = from.clip, side.sigma = from.sigma, side.bad = from.bad;
    side.kv_heads = p.kv_heads, side.sink_pages = p.sink_pages, side.ring_pages = p.ring_pages;
    side.encoder = p.encoder, side.layers = 1, side.page_layer_bytes = side.window_layer_bytes = 0;
  }
  __syncthreads();
  if (run.count == 0 || side.layout.planes == 0) return;
  code_run<D / 32>(side, blockIdx.y, run, memory + warp * run_warp_bytes<D / 32>(p.most_words));
}

}  // namespace

std::int32_t newest_words(const SideLayout& side) { return side.planes == 0 ? 0 : image_words(side); }

cudaError_t newest_tokens(const NewestTokensParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.ring_pages < 1) return cudaErrorInvalidValue;
  if (p.batch == 0 || p.side_count == 0) return cudaSuccess;
  return for_fast_head_dim(p.head_dim, [&]<int D>() {
    const int bytes = kRunWarps * run_warp_bytes<D / 32>(p.most_words);
    return launch_with_memory<newest_kernel<D>>(bytes, grid_of(blocks_of(p.batch, kRunWarps), p.kv_heads, p.side_count),
                                                32 * kRunWarps, stream, p);
  });
}

}  // namespace oscar::kernels
