// Host half of the decode kernel; included by the instantiation files only.
#pragma once

#include <algorithm>

#include "kernels/decode/kernel.cuh"

namespace oscar::kernels {

template <class C>
constexpr int dynamic_bytes() {
  return C::kPoolBytes;
}

template <int D, int NT>
int decode_blocks() {
  using C = DecodeConfig<D, NT>;
  int device = 0, multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
  return multiprocessors * C::kBlocksPerSm;
}

template <int D, int NT>
cudaError_t launch_decode(const DecodeAttentionParams& p, cudaStream_t stream) {
  using C = DecodeConfig<D, NT>;
  const auto kernel = p.soft_cap > 0.0f ? decode_kernel<C, true> : decode_kernel<C, false>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_bytes<C>());
  if (error != cudaSuccess) return error;
  kernel<<<decode_blocks<D, NT>(), C::kThreads, dynamic_bytes<C>(), stream>>>(p);
  return cudaGetLastError();
}

}  // namespace oscar::kernels
