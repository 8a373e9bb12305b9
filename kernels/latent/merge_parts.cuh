// Merges the parts of a sequence, in a fixed order: outputs are the sums over the softmax denominator.
#pragma once

#include "kernels/common/launch_kernel.cuh"
#include "kernels/latent/block_state.cuh"

namespace oscar::kernels::latent {

inline constexpr int kMergeWarps = 8;

// A block has 128 channels of one head of a sequence; its warps take the parts in turn.
__global__ void __launch_bounds__(32 * kMergeWarps) merge_parts_kernel(const __grid_constant__ Launch a) {
  wait_for_previous();
  __shared__ float4 sums[kMergeWarps][32];
  const int row = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool used = a.p.lengths[row / a.p.heads] > 0;
  const int splits = used ? a.splits() : 0;
  const float2* logs = a.part_logs + static_cast<std::int64_t>(row) * a.splits();
  float most = kNone, sum = 0.0f;
  for (int i = lane; i < splits; i += 32) most = fmaxf(most, logs[i].x);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
  for (int i = lane; i < splits; i += 32) sum += logs[i].y * exp2f(logs[i].x - most);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);

  const int channel = static_cast<int>(blockIdx.y) * 128 + 4 * lane;
  const bool first = a.p.refined && blockIdx.y == 0, last = a.p.refined && blockIdx.y == kBands - 1;
  float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int i = warp; i < splits; i += kMergeWarps) {
    if (logs[i].x == kNone) continue;  // such parts have no sums
    const bool coded = i >= a.window_splits;
    if (last && coded) continue;  // this band's sums are of the first channels
    const float weight = exp2f(logs[i].x - most);
    const std::int64_t part = static_cast<std::int64_t>(row) * a.splits() + i;
    const float* sums_of = a.part_sums + part * kLatentChannels + channel;
    float4 y = *reinterpret_cast<const float4*>(sums_of);
    if (first && coded) {
      const float4 more = *reinterpret_cast<const float4*>(sums_of + (kBands - 1) * kBandChannels);
      y.x += more.x, y.y += more.y, y.z += more.z, y.w += more.w;
    }
    x.x += weight * y.x, x.y += weight * y.y, x.z += weight * y.z, x.w += weight * y.w;
  }
  sums[warp][lane] = x;
  __syncthreads();
  if (warp > 0) return;
  for (int w = 1; w < kMergeWarps; ++w) {
    const float4 y = sums[w][lane];
    x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
  }
  const float inverse = used ? 1.0f / sum : 0.0f;
  x.x *= inverse, x.y *= inverse, x.z *= inverse, x.w *= inverse;
  if (used && a.p.after != nullptr) {
    const float* more = a.p.after + channel;
    x.x += more[0], x.y += more[1], x.z += more[2], x.w += more[3];
  }
  const std::int64_t to = static_cast<std::int64_t>(row) * kLatentChannels + channel;
  if (a.p.out_float) {
    *reinterpret_cast<float4*>(static_cast<float*>(a.p.out) + to) = x;
  } else {
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(a.p.out) + to) =
        make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
  }
  if (a.p.lse != nullptr && blockIdx.y == 0 && lane == 0)
    a.p.lse[row] = used ? (most + log2f(sum)) * 0.6931471805599453f : kNone;
}

}  // namespace oscar::kernels::latent
