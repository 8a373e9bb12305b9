#include "attention/cuda/device_cache.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace oscar {
namespace {

constexpr std::int64_t kTileSlack = 15;  // the kernel reads the ring in tiles of 16 tokens

std::int64_t pages_for(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

DeviceCache::DeviceCache(const DeviceCacheShape& shape, at::Device device)
    : shape_(shape), device_(device), pools_(static_cast<std::size_t>(shape.layers)) {
  ring_pages_ = shape.quantized
                    ? std::max<std::int64_t>(pages_for(shape.windows.recent + shape.windows.flush - 1 + kTileSlack), 1)
                    : 1;
}

DeviceCache::PageCounts DeviceCache::counts_of(std::int64_t tokens) const {
  const CacheWindows& w = shape_.windows;
  if (!shape_.quantized) return {pages_for(tokens), 0, 0};
  return {pages_for(std::min(w.sink, tokens)), tokens > w.sink ? ring_pages_ : 0,
          pages_for(w.quantized_end(tokens) - w.sink)};
}

void DeviceCache::expect(std::int64_t sequences, std::int64_t tokens) {
  const PageCounts counts = counts_of(tokens);
  expected_pages_ = sequences * counts.body;
  expected_windows_ = sequences * (counts.sink + counts.ring);
}

void DeviceCache::grow(at::Tensor& pool, std::int64_t pages, std::int64_t expected, std::int64_t bytes) const {
  const std::int64_t held = pool.defined() ? pool.size(0) : 0;
  if (pages <= held) return;
  // Grows by an eighth, so that little memory is unused.
  const std::int64_t capacity = std::max({pages, expected, held + held / 8});
  const auto options = at::TensorOptions(at::kByte).device(device_);
  at::Tensor larger = at::empty({capacity, shape_.kv_heads, bytes}, options);
  // Slots that no token was written to are read and masked, so they must not hold NaN.
  if (held < capacity) larger.narrow(0, held, capacity - held).zero_();
  if (held > 0) larger.narrow(0, 0, held).copy_(pool);
  pool = larger;
}

DeviceCache::Sequence& DeviceCache::reserve(std::int64_t layer, std::int64_t id, std::int64_t tokens) {
  Sequence& s = sequences_[id];
  if (s.tokens.empty()) s.tokens.assign(static_cast<std::size_t>(shape_.layers), 0);
  const auto add = [](std::vector<std::int32_t>& ids, std::int64_t count, PageAllocator& allocator) {
    while (std::ssize(ids) < count) ids.push_back(allocator.allocate());
  };
  const PageCounts counts = counts_of(tokens);
  add(s.sink, counts.sink, window_ids_);
  add(s.ring, counts.ring, window_ids_);
  add(s.pages, counts.body, page_ids_);
  Pools& pools = pools_[static_cast<std::size_t>(layer)];
  grow(pools.windows, window_ids_.pages_ever(), expected_windows_, shape_.window_page_bytes);
  if (!shape_.quantized) return s;
  grow(pools.pages, page_ids_.pages_ever(), expected_pages_, shape_.page_bytes[static_cast<std::size_t>(layer)]);
  return s;
}

const DeviceCache::Sequence* DeviceCache::find(std::int64_t id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : &found->second;
}

void DeviceCache::release(std::int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  for (const std::int32_t page : found->second.pages) page_ids_.release(page);
  for (const std::int32_t page : found->second.sink) window_ids_.release(page);
  for (const std::int32_t page : found->second.ring) window_ids_.release(page);
  sequences_.erase(found);
}

std::uint8_t* DeviceCache::pages(std::int64_t layer) const {
  const at::Tensor& pool = pools_[static_cast<std::size_t>(layer)].pages;
  return pool.defined() ? pool.data_ptr<std::uint8_t>() : nullptr;
}

std::uint8_t* DeviceCache::windows(std::int64_t layer) const {
  return pools_[static_cast<std::size_t>(layer)].windows.data_ptr<std::uint8_t>();
}

std::uint64_t DeviceCache::allocated_bytes() const {
  std::uint64_t bytes = 0;
  for (const Pools& pools : pools_) {
    if (pools.pages.defined()) bytes += pools.pages.nbytes();
    if (pools.windows.defined()) bytes += pools.windows.nbytes();
  }
  return bytes;
}

void StepTables::clear() { host_.clear(); }

std::size_t StepTables::add(const std::vector<std::int32_t>& section) {
  const std::size_t offset = host_.size();
  host_.insert(host_.end(), section.begin(), section.end());
  host_.resize((host_.size() + 3) / 4 * 4);  // sections begin at multiples of 16 bytes
  return offset;
}

void StepTables::upload() { block_ = upload_(host_); }

const std::int32_t* StepTables::at(std::size_t offset) const { return block_ + static_cast<std::ptrdiff_t>(offset); }

}  // namespace oscar
