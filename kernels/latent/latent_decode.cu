// A block of four warps has 16 query heads of a sequence and a part of its pages or of its windows. It writes sums and
// their softmax state, which a second kernel merges.
#include "kernels/latent/latent_decode.h"

#include <algorithm>
#include <atomic>

#include "kernels/common/launch_kernel.cuh"
#include "kernels/latent/code_pages.cuh"
#include "kernels/latent/merge_parts.cuh"
#include "kernels/latent/window_pages.cuh"

namespace oscar::kernels {
namespace {

using latent::Launch;
using latent::Shared;

__global__ void __launch_bounds__(latent::kThreads, 3) decode_kernel(const __grid_constant__ Launch a) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  const int lane = threadIdx.x % 32, band = threadIdx.x / 32;
  const int first_head = static_cast<int>(blockIdx.x) * latent::kHeadTile, split = blockIdx.y, sequence = blockIdx.z;
  if (a.p.lengths[sequence] == 0) return;
  const CopyRing ring{shared_address(s.barrier[band])};
  ring.init<latent::kMostStages>(lane);
  if (split < a.window_splits) return latent::WindowPages{a, s, ring, band, lane}.run(sequence, first_head, split);
  const auto pages = [&]<int W>() {
    latent::CodePages<W>(a, s, ring, band, lane).run(sequence, first_head, split, split - a.window_splits);
  };
  switch (a.p.widths[band]) {
    case 4:
      return pages.template operator()<4>();
    case 2:
      return pages.template operator()<2>();
    case 1:
      return pages.template operator()<1>();
    default:
      return pages.template operator()<0>();
  }
}

static_assert(sizeof(Shared) <= kLeastBlockMemory);

// Blocks of decode_kernel that the current device runs at once; 0 with an error.
int resident_blocks(cudaError_t& error) {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];
  int device = 0, processors = 0, blocks = 0;
  if ((error = cudaGetDevice(&device)) != cudaSuccess) return 0;
  if (device >= kDevices) {
    error = cudaErrorInvalidDevice;
    return 0;
  }
  if (known[device] > 0) return known[device];
  if ((error = allow_shared_memory<decode_kernel>(sizeof(Shared))) != cudaSuccess) return 0;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return 0;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, decode_kernel, latent::kThreads, sizeof(Shared));
  if (error != cudaSuccess) return 0;
  if (blocks == 0) error = cudaErrorInvalidConfiguration;
  known[device] = processors * blocks;
  return known[device];
}

bool is_served(const LatentDecodeParams& p) {
  for (const std::uint8_t w : p.widths) {
    if (w > 4 || w == 3) return false;
  }
  if (p.refined && (p.widths[0] == 0 || p.widths[3] == 0)) return false;
  const auto even = [](const std::int64_t(&stride)[2]) { return stride[0] % 2 == 0 && stride[1] % 2 == 0; };
  return p.heads > 0 && p.ring_pages > 0 && p.sink >= 0 && p.recent >= 1 && p.recent <= 64 * p.ring_pages &&
         p.sink <= 64 * p.sink_pages && p.page_stride % 16 == 0 && p.page_stride >= latent_page(p.widths).bytes() &&
         even(p.q_latent_stride) && even(p.q_pe_stride) && p.page_splits >= 0 && p.window_splits >= 0 &&
         p.page_splits <= kLatentMostSplits && p.window_splits <= kLatentMostSplits;
}

int head_tiles(int heads) { return std::max(1, (heads + latent::kHeadTile - 1) / latent::kHeadTile); }

// Windows are read half a page at a time, which takes a block as long as one or two pages of codes.
Launch divided(const LatentDecodeParams& p, int resident) {
  Launch a{};
  a.p = p, a.page = latent_page(p.widths);
  a.head_tiles = head_tiles(p.heads);
  const int each = std::max(1, resident / std::max(1, p.batch * a.head_tiles));
  const int halves = 2 * (p.sink_pages + p.ring_pages);
  a.window_splits =
      p.window_splits > 0 ? p.window_splits : std::clamp(each / 5, 1, std::min(halves, kLatentMostSplits));
  a.page_splits = p.page_splits > 0 ? p.page_splits
                                    : std::clamp(each - a.window_splits, 1,
                                                 std::clamp(p.max_pages / latent::kLeastPages, 1, kLatentMostSplits));
  a.stages = std::min(latent::kMostStages, latent::kRingBytes / a.page.bytes());
  return a;
}

std::size_t rows_of(const Launch& a) {
  return static_cast<std::size_t>(a.p.batch) * static_cast<std::size_t>(a.p.heads) *
         static_cast<std::size_t>(a.splits());
}

}  // namespace

std::size_t latent_decode_workspace_bytes(const LatentDecodeParams& p) {
  cudaError_t error = cudaSuccess;
  const int resident = resident_blocks(error), tiles = head_tiles(p.heads);
  // A sequence has resident / (batch tiles) parts, or one of pages and one of windows.
  const std::size_t heads = static_cast<std::size_t>(p.heads);
  std::size_t rows = heads * static_cast<std::size_t>(std::max(resident / tiles, 2 * p.batch));
  if (p.page_splits > 0 || p.window_splits > 0) rows = std::max(rows, rows_of(divided(p, resident)));
  return rows * (kLatentChannels * sizeof(float) + sizeof(float2));
}

cudaError_t latent_decode(const LatentDecodeParams& p, cudaStream_t stream) {
  if (!is_served(p)) return cudaErrorInvalidValue;
  if (p.batch == 0) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  Launch a = divided(p, resident_blocks(error));
  if (error != cudaSuccess) return error;
  a.part_sums = static_cast<float*>(p.workspace);
  a.part_logs = reinterpret_cast<float2*>(a.part_sums + rows_of(a) * kLatentChannels);
  const dim3 grid = grid_of(a.head_tiles, a.splits(), p.batch);
  error = p.early ? launch_early_with_memory<decode_kernel>(sizeof(Shared), grid, latent::kThreads, stream, a)
                  : launch_with<decode_kernel, Shared>(grid, latent::kThreads, stream, a);
  if (error != cudaSuccess) return error;
  return launch_early<latent::merge_parts_kernel>(grid_of(static_cast<std::int64_t>(p.batch) * p.heads, 4),
                                                  32 * latent::kMergeWarps, stream, a);
}

}  // namespace oscar::kernels
