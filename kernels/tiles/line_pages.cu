// One thread per line of a page: lines do not share bytes, but groups of a line do.
#include "kernels/common/launch_kernel.cuh"
#include "kernels/tiles/group_codes.cuh"
#include "kernels/tiles/line_pages.h"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 128, kPageTokens = 128;

// Writes codes [first, first + quant_group) of a line, and their shared parameters. x: the first value; the next values
// are `stride` apart.
__device__ inline void write_group(const LinePagesParams& p, std::uint8_t* head_page, int line, int first,
                                   const float* x, std::int64_t stride) {
  float low = INFINITY, high = -INFINITY;
  for (int i = 0; i < p.quant_group; ++i) low = fminf(low, x[i * stride]), high = fmaxf(high, x[i * stride]);
  const GroupScale s =
      p.integer_zero ? integer_zero_scale(low, high, p.bits, p.clip) : uniform_scale(low, high, p.bits);
  const std::uint32_t pair = __half_as_ushort(__float2half_rn(s.scale)) |
                             static_cast<std::uint32_t>(__half_as_ushort(__float2half_rn(s.offset))) << 16;
  const int groups = p.line / p.quant_group;
  *reinterpret_cast<std::uint32_t*>(head_page + p.params_offset + (line * groups + first / p.quant_group) * 4) = pair;
  const int bytes = p.line * p.bits / 8, mask = (1 << p.bits) - 1;
  std::uint8_t* codes = head_page + static_cast<std::int64_t>(line) * bytes;
  for (int i = 0; i < p.quant_group; ++i) {
    const int at = first + i, shift = at / bytes * p.bits;
    const int code = static_cast<int>(code_of(s, x[i * stride], p.bits));
    std::uint8_t& byte = codes[at % bytes];
    byte = static_cast<std::uint8_t>((byte & ~(mask << shift)) | code << shift);
  }
}

__global__ void __launch_bounds__(kThreads) line_kernel(const __grid_constant__ LinePagesParams p) {
  const PageRun run = p.runs[blockIdx.z];
  const int head = blockIdx.y, index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  std::uint8_t* page = p.pages + run.page * p.page_bytes;
  if (p.norms != nullptr && head == 0 && index < run.count) {
    reinterpret_cast<float*>(page)[run.first_slot + index] = p.norms[run.first_row + index];
  }
  if (index >= (p.channel_axis ? p.head_dim : run.count)) return;
  std::uint8_t* head_page =
      page + (p.norms != nullptr ? kPageTokens * 4 : 0) + static_cast<std::int64_t>(head) * p.head_bytes;
  const std::int64_t width = static_cast<std::int64_t>(p.kv_heads) * p.head_dim;
  const float* rows = p.rows + run.first_row * width + head * p.head_dim;
  if (p.channel_axis) {
    for (int t = 0; t < run.count; t += p.quant_group) {
      write_group(p, head_page, index, run.first_slot + t, rows + t * width + index, width);
    }
  } else {
    for (int c = 0; c < p.head_dim; c += p.quant_group) {
      write_group(p, head_page, run.first_slot + index, c, rows + index * width + c, 1);
    }
  }
}

}  // namespace

cudaError_t line_pages(const LinePagesParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.head_dim < 1 || p.quant_group < 1 || p.line % p.quant_group != 0)
    return cudaErrorInvalidValue;
  if (p.line != (p.channel_axis ? kPageTokens : p.head_dim) || p.line * p.bits % 8 != 0) return cudaErrorInvalidValue;
  if (p.run_count == 0) return cudaSuccess;
  const int most = p.head_dim > kPageTokens ? p.head_dim : kPageTokens;  // lines, or norms, of a run
  const dim3 grid = grid_of(blocks_of(most, kThreads), p.kv_heads, p.run_count);
  return launch_kernel<line_kernel>(grid, kThreads, stream, p);
}

}  // namespace oscar::kernels
