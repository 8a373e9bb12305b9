#include "attention/cuda/device_mirror.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace oscar {
namespace {

// Copies from pageable memory: the source has been read when the call returns (CUDA stages it), so that nothing waits
// for what the GPU still has to do before.
constexpr bool kStaged = true;

// Room for `needed` rows, growing by an eighth, never beyond `most`.
void grow(at::Tensor& storage, std::int64_t needed, std::int64_t step, std::int64_t most, at::IntArrayRef row,
          const at::TensorOptions& options) {
  const std::int64_t held = storage.defined() ? storage.size(0) : 0;
  if (needed <= held) return;
  std::vector<std::int64_t> sizes{std::max(needed, std::min(most, held + std::max(held / 8, step)))};
  sizes.insert(sizes.end(), row.begin(), row.end());
  const at::Tensor larger = at::zeros(sizes, options);
  if (held > 0) larger.narrow(0, 0, held).copy_(storage);
  storage = larger;
}

const std::uint16_t* bits(const at::Tensor& x) {
  return x.defined() ? reinterpret_cast<const std::uint16_t*>(x.const_data_ptr<at::BFloat16>()) : nullptr;
}

}  // namespace

DeviceMirror::DeviceMirror(std::int64_t layers, std::int64_t kv_heads, std::int64_t head_dim, at::Device device)
    : kv_heads_(kv_heads), head_dim_(head_dim), device_(device), pools_(static_cast<std::size_t>(layers)) {}

void DeviceMirror::copy_rows(at::Tensor& to, const std::uint16_t* from, std::int64_t first, std::int64_t count,
                             std::int64_t most) const {
  if (count <= 0) return;
  grow(to, first + count, 64, most, {kv_heads_, head_dim_}, at::TensorOptions(at::kBFloat16).device(device_));
  // from_blob does not write through its pointer.
  auto* source = const_cast<std::uint16_t*>(from) + first * kv_heads_ * head_dim_;
  to.narrow(0, first, count).copy_(at::from_blob(source, {count, kv_heads_, head_dim_}, at::kBFloat16), kStaged);
}

void DeviceMirror::copy_pages(at::Tensor& pool, const SideView& held, std::int64_t first, std::int64_t count) const {
  const std::int64_t needed = *std::max_element(held.table + first, held.table + first + count) + std::int64_t{1};
  const std::int64_t page_bytes = held.pages->bytes();
  grow(pool, needed, 1, INT64_MAX, {page_bytes}, at::TensorOptions(at::kByte).device(device_));
  for (std::int64_t i = first; i < first + count; ++i) {
    auto* bytes = const_cast<std::uint8_t*>(held.page(i));
    pool[held.table[i]].copy_(at::from_blob(bytes, {page_bytes}, at::kByte), kStaged);
  }
}

void DeviceMirror::update(std::int64_t layer, std::int64_t sequence, Side side, const SideView& held, bool pages) {
  Rows& to = places_[{layer, sequence}][at(side)];
  const std::int64_t sink_before = std::min(to.tokens, held.sink.capacity), sink = held.sink.tokens;
  copy_rows(to.sink, held.sink.rows, sink_before, sink - sink_before, held.sink.capacity);
  // Behind the sink, in runs up to the end of the ring; what was overwritten in between is not there any more.
  const std::int64_t end = held.tokens() - sink, ring = held.recent.capacity;
  std::int64_t begin = std::max(to.tokens - sink_before, end - ring);
  while (begin < end) {
    const std::int64_t row = begin % ring, count = std::min(end - begin, ring - row);
    copy_rows(to.ring, held.recent.rows, row, count, ring);
    begin += count;
  }
  if (pages && held.body > to.body) {
    const std::int64_t step = held.pages->tokens(), first = to.body / step, last = (held.body - 1) / step;
    copy_pages(pools_[static_cast<std::size_t>(layer)][at(side)], held, first, last + 1 - first);
  }
  to.tokens = held.tokens(), to.body = held.body;
}

void DeviceMirror::release(std::int64_t sequence) {
  std::erase_if(places_, [&](const auto& place) { return place.first.second == sequence; });
}

const DeviceMirror::Rows& DeviceMirror::rows(std::int64_t layer, std::int64_t sequence, Side side) const {
  return places_.at({layer, sequence})[at(side)];
}

const at::Tensor& DeviceMirror::pool(std::int64_t layer, Side side) const {
  return pools_[static_cast<std::size_t>(layer)][at(side)];
}

const std::uint8_t* DeviceMirror::pages(std::int64_t layer, Side side) const {
  const at::Tensor& x = pool(layer, side);
  return x.defined() ? x.const_data_ptr<std::uint8_t>() : nullptr;
}

kernels::FallbackSequenceSide DeviceMirror::sequence_side(std::int64_t layer, std::int64_t sequence, Side side,
                                                          const SideView& held, const std::int32_t* page_table) const {
  const Rows& copy = rows(layer, sequence, side);
  const auto number = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  kernels::FallbackSequenceSide s{};
  s.sink = {bits(copy.sink), 0, copy.sink.defined() ? number(copy.sink.size(0)) : 1};
  s.recent = {bits(copy.ring), number(held.recent.first), number(held.recent.capacity)};
  s.page_table = page_table;
  s.sink_tokens = number(held.sink.tokens);
  s.body_tokens = number(held.body);
  return s;
}

std::uint64_t DeviceMirror::bytes() const {
  std::uint64_t total = 0;
  const auto add = [&](const at::Tensor& x) { total += x.defined() ? x.nbytes() : 0; };
  for (const auto& sides : pools_) std::for_each(sides.begin(), sides.end(), add);
  for (const auto& [place, sides] : places_) {
    for (const Rows& side : sides) add(side.sink), add(side.ring);
  }
  return total;
}

}  // namespace oscar
