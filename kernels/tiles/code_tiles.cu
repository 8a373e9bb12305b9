// One warp per group of channels of a token; one thread per group of tokens of a channel.
#include "kernels/common/launch_kernel.cuh"
#include "kernels/tiles/group_codes.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) token_kernel(const __grid_constant__ CodeTilesParams p) {
  const int groups = p.channels / p.quant_group;
  const std::int64_t index = (blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x) / 32;
  if (index >= p.tokens * p.heads * groups) return;
  float* row = p.rows + index / groups * p.head_dim + p.first_channel;
  code_group(WarpGroup{row + index % groups * p.quant_group, p.quant_group, static_cast<int>(threadIdx.x & 31)}, p);
}

__global__ void __launch_bounds__(kThreads) channel_kernel(const __grid_constant__ CodeTilesParams p) {
  const std::int64_t index = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x;
  const std::int64_t width = static_cast<std::int64_t>(p.heads) * p.head_dim;
  if (index >= p.tokens / p.quant_group * width) return;
  code_group(ThreadGroup{p.rows + index / width * p.quant_group * width + index % width, p.quant_group, width}, p);
}

}  // namespace

cudaError_t code_tiles(const CodeTilesParams& p, cudaStream_t stream) {
  if (p.heads < 1 || p.head_dim < 1 || p.quant_group < 1) return cudaErrorInvalidValue;
  if (p.first_channel < 0 || p.channels < 1 || p.first_channel + p.channels > p.head_dim) return cudaErrorInvalidValue;
  if (p.code == TileCode::kLloydMax && p.centroids == nullptr) return cudaErrorInvalidValue;
  if (p.tokens == 0) return cudaSuccess;
  if (p.channel_axis) {
    if (p.tokens % p.quant_group != 0 || p.channels != p.head_dim) return cudaErrorInvalidValue;
    const std::int64_t threads = p.tokens / p.quant_group * p.heads * p.head_dim;
    return launch_kernel<channel_kernel>(grid_of(blocks_of(threads, kThreads)), kThreads, stream, p);
  }
  if (p.channels % p.quant_group != 0) return cudaErrorInvalidValue;
  const std::int64_t threads = 32 * p.tokens * p.heads * (p.channels / p.quant_group);
  return launch_kernel<token_kernel>(grid_of(blocks_of(threads, kThreads)), kThreads, stream, p);
}

}  // namespace oscar::kernels
