// Host half of the decode kernels; only the instantiation files include it.
#pragma once

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "kernels/common/hopper_code.h"
#include "kernels/common/launch_kernel.cuh"
#include "kernels/decode/cluster_kernel.cuh"
#include "kernels/decode/parts_kernel.cuh"
#include "kernels/decode/stream_kernel.cuh"

namespace oscar::kernels {

struct DeviceLimits {
  int device = 0, multiprocessors = 0, major = 0;
  SharedMemoryLimits memory;

  static cudaError_t get(DeviceLimits& d) {
    cudaError_t error = cudaGetDevice(&d.device);
    const auto read = [&](int& to, cudaDeviceAttr what) {
      if (error == cudaSuccess) error = cudaDeviceGetAttribute(&to, what, d.device);
    };
    read(d.multiprocessors, cudaDevAttrMultiProcessorCount);
    read(d.major, cudaDevAttrComputeCapabilityMajor);
    read(d.memory.per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    read(d.memory.per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    read(d.memory.reserved_per_block, cudaDevAttrReservedSharedMemoryPerBlock);
    return error;
  }
  // The cluster and the parts kernel were measured on Hopper only. Other devices use the streaming kernel.
  bool is_hopper() const { return major == 9; }
};

// Pairs of sequence and KV head.
inline int items_of(const DecodeLaunch& a) { return a.p.batch * a.p.kv_heads; }

// The most blocks of a streaming kernel.
template <class C>
int decode_blocks() {
  DeviceLimits device;
  constexpr int kMost = C::kHasSmall ? C::Half::kBlocksPerSm : C::kBlocksPerSm;
  return DeviceLimits::get(device) == cudaSuccess ? device.multiprocessors * kMost : 0;
}

// Sets the launch's rings to what the shared memory of a resident block allows.
template <class C, class Declared>
MemoryPlan plan_shared_memory(DecodeLaunch& a, const DeviceLimits& device, int extra = 0) {
  const MemoryPlan plan = plan_memory(block_memory<C>(a.slot_bytes, device.multiprocessors, sizeof(Declared), extra),
                                      C::kBlocksPerSm, device.memory);
  a.slots = plan.slots, a.pool_bytes = plan.pool_bytes;
  return plan;
}

// Number of clusters of `size` blocks that can be resident together; queried once per device and size.
template <class Kernel>
int resident_clusters(Kernel kernel, cudaLaunchConfig_t config, cudaLaunchAttribute& attribute, int size, int device) {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices][17];  // one more than the count; 0: not queried yet
  if (device < kDevices && known[device][size] != 0) return known[device][size] - 1;
  attribute.val.clusterDim.x = static_cast<unsigned>(size);
  config.gridDim = dim3(static_cast<unsigned>(size));
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
    cudaGetLastError();
    clusters = 0;
  }
  if (device < kDevices) known[device][size] = clusters + 1;
  return clusters;
}

// Division of an item in the cluster kernel: `parts` clusters of `size` blocks.
struct ClusterSplit {
  int size = 0, parts = 0;  // 0: the items do not fit the device
};

// As many blocks per item as the multiprocessors allow, but at most one page or BF16 tile per warp. All clusters must
// be resident; their size is the largest that allows it, because results of several clusters must go through global
// memory.
template <class C, class Resident>
ClusterSplit cluster_split(const DecodeLaunch& a, int multiprocessors, Resident&& resident) {
  const int items = items_of(a);
  const int units = a.p.max_pages + (a.p.sink + a.p.recent + a.p.flush) / kTileTokens;
  const int blocks = std::clamp(multiprocessors / items, 1, (units + C::kWarps - 1) / C::kWarps);
  for (int size = std::min(blocks, C::kMaxCluster); size >= 1; --size) {
    const int parts = blocks / size;
    if (10 * size * parts >= 9 * blocks && items * parts <= resident(size)) return {size, parts};
  }
  return {};
}

// Launches a kernel other than the cluster kernel.
template <auto kernel>
cudaError_t launch_planned(const DecodeLaunch& a, const dim3& grid, int threads, const MemoryPlan& plan, bool early,
                           cudaStream_t stream) {
  const cudaError_t error = allow_shared_memory<kernel>(plan.bytes);
  return error != cudaSuccess ? error : launch_perhaps_early<kernel>(early, plan.bytes, grid, threads, stream, a);
}

// Launches the cluster kernel if every item can have resident clusters; `launched` tells whether it did.
template <class C>
cudaError_t launch_cluster(DecodeLaunch a, const DeviceLimits& device, cudaStream_t stream, bool& launched) {
  launched = false;
  const int items = items_of(a);
  if (!device.is_hopper() || items == 0 || items > device.multiprocessors) return cudaSuccess;
  const auto kernel = cluster_kernel<C>;
  const MemoryPlan plan = plan_shared_memory<C, DecodeShared<C>>(a, device, C::receive_bytes(a.gqa_group));
  if (!plan.fits()) return cudaSuccess;
  cudaError_t error = allow_shared_memory<cluster_kernel<C>>(plan.bytes);
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchAttribute& attribute = attributes[0];
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(plan.bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  const ClusterSplit split = cluster_split<C>(a, device.multiprocessors, [&](int size) {
    return resident_clusters(kernel, config, attribute, size, device.device);
  });
  if (split.size == 0) return cudaSuccess;
  a.parts = split.parts;
  config.gridDim = grid_of(split.size * split.parts, a.p.kv_heads, a.p.batch);
  attribute.val.clusterDim.x = static_cast<unsigned>(split.size);
  launched = true;
  if (a.page_queries != nullptr) config.attrs[config.numAttrs++] = early_start();
  return cudaLaunchKernelEx(&config, kernel, a);
}

// Division of an item in the parts kernel.
struct PartsSplit {
  int parts;      // blocks per item
  bool expected;  // true if the parts kernel is expected to be the fastest

  // As many blocks as the multiprocessors allow, but no more than give half of their warps a page or BF16 tile. With
  // two parts there are as many clusters, whose copy of the page loop is faster (H200: `blocks` by 1 to 4 %, `uniform`
  // by 1 % if a warp has many pages). One block adds up all parts, so there must not be too many.
  template <class C>
  static PartsSplit make(const DecodeLaunch& a, int multiprocessors) {
    const int items = items_of(a), least = C::kWarps / 2;
    const int units = a.p.max_pages + (a.p.sink + a.p.recent + a.p.flush) / kTileTokens;
    const int parts = std::clamp(multiprocessors / items, 1, (units + least - 1) / least);
    const bool short_enough = C::kUniform && parts == 2 && units <= 32 * C::kWarps * parts;
    return {parts, (parts > 2 || short_enough) && parts <= 33};
  }
};

// Launches the parts kernel if it supports the batch and is expected to be the fastest, or is requested; `launched`
// tells whether it did.
template <class C>
cudaError_t launch_parts(DecodeLaunch a, const DeviceLimits& device, cudaStream_t stream, bool& launched) {
  const int items = items_of(a);
  launched = false;
  if (!device.is_hopper() || items == 0 || items > device.multiprocessors) return cudaSuccess;
  const PartsSplit split = PartsSplit::make<C>(a, device.multiprocessors);
  if (a.p.kernel != DecodeKernel::kParts && !split.expected) return cudaSuccess;
  const MemoryPlan plan = plan_shared_memory<C, PartsShared<C>>(a, device);
  if (a.slots * a.slot_bytes < C::kHeads * C::kMergeRow * 4) return cudaSuccess;  // a warp's ring must hold its sums
  launched = true;
  const dim3 grid = grid_of(split.parts, a.p.kv_heads, a.p.batch);
  return launch_planned<parts_kernel<C>>(a, grid, C::kThreads, plan, a.page_queries != nullptr, stream);
}

template <class C>
cudaError_t launch_half(const DecodeLaunch& a, const DeviceLimits& device, cudaStream_t stream);

// Whether each item can have a small block of its own, and these nearly fill the device. Such a block starts and merges
// once, where one of eight warps does so for parts of three items. (H200, 60 sequences of 8 KV heads: a layer's pass in
// 66 us in place of 71 at 760 tokens, and in 87 in place of 93 at 2,300.)
template <class C>
bool fills_small_blocks(DecodeLaunch a, const DeviceLimits& device) {
  const int items = items_of(a), blocks = device.multiprocessors * C::kBlocksPerSm;
  return device.is_hopper() && items <= blocks && 8 * items >= 7 * blocks &&
         plan_shared_memory<C, DecodeShared<C>>(a, device).blocks == C::kBlocksPerSm;
}

// Launches the streaming kernel. If its block does not fit the device, launches the one with half the warps.
template <class C>
cudaError_t launch_stream(DecodeLaunch a, const DeviceLimits& device, cudaStream_t stream) {
  if constexpr (C::kHasSmall)
    if (fills_small_blocks<typename C::Half>(a, device)) return launch_stream<typename C::Half>(a, device, stream);
  const MemoryPlan plan = plan_shared_memory<C, DecodeShared<C>>(a, device);
  if (!plan.fits()) {
    if constexpr (C::kHasHalf) return launch_half<C>(a, device, stream);
    return cudaErrorInvalidConfiguration;
  }
  return launch_planned<stream_kernel<C>>(a, grid_of(device.multiprocessors * plan.blocks), C::kThreads, plan,
                                          a.page_queries != nullptr && device.major >= 9, stream);
}

// The code for 90a has no kernel whose blocks Hopper never needs.
template <class C>
cudaError_t launch_half(const DecodeLaunch& a, const DeviceLimits& device, cudaStream_t stream) {
  if (C::Half::kNotHopper && kHopperCode && device.is_hopper()) return cudaErrorInvalidValue;
  return launch_stream<typename C::Half>(a, device, stream);
}

// Whether more than half of the multiprocessors have an item. Then the streaming kernel with the cluster kernel's
// blocks is as fast, and a request much longer than others does not keep one block busy while all others wait. (H200, 8
// KV heads, a layer's pass: 16 sequences of 700 tokens 27 us in place of 28; 15 of 640 and one of 131,000 88 in place
// of 370.)
inline bool has_one_block_an_item(const DecodeLaunch& a, const DeviceLimits& device) {
  const int items = items_of(a);
  return device.is_hopper() && 2 * items > device.multiprocessors && items <= device.multiprocessors;
}

template <class C>
cudaError_t launch_decode(const DecodeLaunch& a, cudaStream_t stream) {
  DeviceLimits device;
  cudaError_t error = DeviceLimits::get(device);
  if (error != cudaSuccess) return error;
  const DecodeKernel wish = a.p.kernel;
  if (wish == DecodeKernel::kAuto && has_one_block_an_item(a, device))
    return launch_stream<std::conditional_t<C::kManyRegisters, C, typename C::Cluster>>(a, device, stream);
  bool launched = false;
  if constexpr (C::NT == 1 && C::D <= 128) {
    if (wish == DecodeKernel::kAuto || wish == DecodeKernel::kParts) {
      error = launch_parts<typename C::Parts>(a, device, stream, launched);
      if (error != cudaSuccess || launched) return error;
    }
  }
  if (wish == DecodeKernel::kAuto || wish == DecodeKernel::kCluster) {
    error = launch_cluster<typename C::Cluster>(a, device, stream, launched);
    if (error != cudaSuccess || launched) return error;
  }
  if (wish == DecodeKernel::kCluster || wish == DecodeKernel::kParts) return cudaErrorInvalidValue;
  if (wish == DecodeKernel::kHalfStream) {
    if constexpr (C::kHasHalf) return launch_half<C>(a, device, stream);
    return cudaErrorInvalidValue;
  }
  return launch_stream<C>(a, device, stream);
}

}  // namespace oscar::kernels
