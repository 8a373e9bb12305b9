// One thread block does all: the work is a few thousand integers, and each phase reads what the last one wrote. Entries
// that are missing are given out one after another, so that the result does not depend on the order of threads.
#include "kernels/plan/assign_entries.h"

#include "kernels/common/launch_kernel.cuh"
#include "kernels/common/page_layout.h"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr std::int64_t kNone = -1, kNoEntry = INT64_MAX;
constexpr int kEntryBits = 24;
constexpr std::int64_t kSinksLast = std::int64_t{1} << 38;  // entries of sinks count as used this much later

// Least of one number of each thread; the same for all threads.
__device__ std::int64_t least_of_all(std::int64_t value, std::int64_t* shared) {
  for (int step = 16; step > 0; step /= 2) {
    const std::int64_t other = __shfl_xor_sync(0xffffffffu, value, step);
    value = other < value ? other : value;
  }
  __syncthreads();  // the last call's number was read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) value = shared[warp] < value ? shared[warp] : value;
  return value;
}

// Places in `waiting` of the threads that have something, in order; returns how many they are.
__device__ int listed(bool some, int number, int* waiting, int* counts) {
  const unsigned lanes = __ballot_sync(0xffffffffu, some);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) counts[warp] = __popc(lanes);
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += counts[w];
    all += counts[w];
  }
  if (some) waiting[before + __popc(lanes & ((1u << lane) - 1))] = number;
  __syncthreads();
  return all;
}

// The block in column w of a request's window, -1 if it has none; tells whether it has tokens before the new ones.
__device__ std::int64_t block_of_window(const AssignEntriesParams& p, int request, int w, bool& old) {
  const std::int64_t length = p.lengths[request], known = p.known[request];
  const std::int64_t until = known >= 0 && !p.after ? known : length;
  const std::int64_t start = known >= 0 ? known : (length > p.few[request] ? length - p.few[request] : 0);
  old = false;
  if (until <= 0) return kNone;
  const std::int64_t last = (until - 1) / kPageTokens;
  std::int64_t number = w;
  if (w >= p.sink_pages) {
    const std::int64_t behind = (last - (w - p.sink_pages)) % p.ring_pages;
    number = last - (behind < 0 ? behind + p.ring_pages : behind);
  }
  if (number < 0 || number > last) return kNone;
  if (p.recent > 0 && number >= p.sink_pages && kPageTokens * (number + 1) <= start - p.recent) return kNone;
  old = number * kPageTokens < start;
  const std::int64_t column = number < p.columns ? number : p.columns - 1;
  const std::int64_t block = p.table[static_cast<std::int64_t>(request) * p.columns + column];
  return block >= 0 && block < p.block_count ? block : kNone;
}

// Gives a block the entry that was used longest ago and is in nobody's window.
__device__ bool take_entry(const AssignEntriesParams& p, std::int64_t block, std::int64_t* shared) {
  std::int64_t least = kNoEntry;
  for (int e = threadIdx.x; e < p.entry_count; e += kThreads) {
    const std::int64_t order = p.used_at[e] << kEntryBits | e;
    if (p.marked[e] != p.now && order < least) least = order;
  }
  least = least_of_all(least, shared);
  if (least == kNoEntry) return false;
  if (threadIdx.x == 0) {
    const std::int64_t entry = least & ((1 << kEntryBits) - 1), old = p.block_of[entry];
    if (old >= 0 && p.entry_of[old] == entry) p.entry_of[old] = kNone;
    p.block_of[entry] = block, p.entry_of[block] = entry, p.marked[entry] = p.now;
  }
  __syncthreads();
  return true;
}

__global__ void __launch_bounds__(kThreads) assign_entries_kernel(const AssignEntriesParams p) {
  __shared__ std::int64_t shared[kWarps];
  __shared__ int waiting[kThreads], counts[kWarps];
  __shared__ unsigned lost;
  const int width = p.sink_pages + p.ring_pages, windows = p.requests * width;
  if (threadIdx.x == 0) lost = 0;
  for (int i = threadIdx.x; i < windows; i += kThreads) {
    bool old;
    const std::int64_t block = block_of_window(p, i / width, i % width, old);
    p.blocks[i] = block, p.read[i] = old;
    p.wanted[p.slots[i / width] * width + i % width] = block;
  }
  __syncthreads();
  if (threadIdx.x < width) p.wanted[static_cast<std::int64_t>(p.slot_count) * width + threadIdx.x] = kNone;
  __syncthreads();
  for (int i = threadIdx.x; i < p.slot_count * width; i += kThreads) {
    const std::int64_t entry = p.wanted[i] >= 0 ? p.entry_of[p.wanted[i]] : kNone;
    if (entry >= 0) p.marked[entry] = p.now;
  }
  __syncthreads();
  for (int begin = 0; begin < windows; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const bool missing = i < windows && p.blocks[i] >= 0 && p.entry_of[p.blocks[i]] < 0;
    const int count = listed(missing, i, waiting, counts);
    if (i < windows && !missing) p.read[i] = 0;
    for (int k = 0; k < count; ++k) {
      const int at = waiting[k];
      // A block that several requests want has the entry of the first one.
      const bool fresh = p.entry_of[p.blocks[at]] < 0 && take_entry(p, p.blocks[at], shared);
      if (!fresh && threadIdx.x == 0) p.read[at] = 0;
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < windows; i += kThreads) {
    const std::int64_t entry = p.blocks[i] >= 0 ? p.entry_of[p.blocks[i]] : kNone;
    p.found[i] = static_cast<std::int32_t>(entry >= 0 ? entry : p.entry_count);
    if (entry >= 0) p.used_at[entry] = p.now;
    if (i % width >= p.sink_pages) p.ring[i / width * p.ring_pages + i % width - p.sink_pages] = p.found[i];
    if ((p.counts && p.read[i] != 0) || (p.blocks[i] >= 0 && entry < 0)) atomicAdd(&lost, 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < windows; i += kThreads) {
    if (i % width < p.sink_pages && p.found[i] < p.entry_count) p.used_at[p.found[i]] = p.now + kSinksLast;
  }
  if (threadIdx.x == 0) *p.lost += lost;
}

}  // namespace

cudaError_t assign_entries(const AssignEntriesParams& params, cudaStream_t stream) {
  const std::int64_t width = std::int64_t{params.sink_pages} + params.ring_pages;
  if (params.requests <= 0) return cudaSuccess;
  if (width > kThreads || params.ring_pages <= 0 || params.entry_count >= 1 << kEntryBits ||
      params.requests * width > INT32_MAX || params.slot_count * width > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  return launch_kernel<assign_entries_kernel>(grid_of(1), kThreads, stream, params);
}

}  // namespace oscar::kernels
