#include "runtime/device_mirror.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace oscar {
namespace {

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
  to.narrow(0, first, count).copy_(at::from_blob(source, {count, kv_heads_, head_dim_}, at::kBFloat16));
}

void DeviceMirror::copy_pages(at::Tensor& pool, const HeldSide& held, std::int64_t first, std::int64_t count) const {
  const std::int64_t needed = *std::max_element(held.pages + first, held.pages + first + count) + std::int64_t{1};
  grow(pool, needed, 1, INT64_MAX, {held.page_bytes}, at::TensorOptions(at::kByte).device(device_));
  for (std::int64_t i = first; i < first + count; ++i) {
    auto* bytes = const_cast<std::uint8_t*>(held.pool) + held.pages[i] * held.page_bytes;
    pool[held.pages[i]].copy_(at::from_blob(bytes, {held.page_bytes}, at::kByte));
  }
}

void DeviceMirror::update(std::int64_t layer, std::int64_t sequence, Side side, const HeldSide& held) {
  Rows& to = places_[{layer, sequence}][at(side)];
  const std::int64_t sink_before = std::min(to.tokens, held.sink_rows), sink = std::min(held.tokens, held.sink_rows);
  copy_rows(to.sink, held.sink, sink_before, sink - sink_before, held.sink_rows);
  // Behind the sink, in runs up to the end of the ring; what was overwritten in between is not there any more.
  const std::int64_t end = held.tokens - sink;
  std::int64_t begin = std::max(to.tokens - sink_before, end - held.ring_rows);
  while (begin < end) {
    const std::int64_t row = begin % held.ring_rows, count = std::min(end - begin, held.ring_rows - row);
    copy_rows(to.ring, held.ring, row, count, held.ring_rows);
    begin += count;
  }
  if (held.pool != nullptr && held.body > to.body) {
    const std::int64_t first = to.body / held.page_tokens, last = (held.body - 1) / held.page_tokens;
    copy_pages(pools_[static_cast<std::size_t>(layer)][at(side)], held, first, last + 1 - first);
  }
  to.tokens = held.tokens, to.body = held.body;
}

void DeviceMirror::release(std::int64_t sequence) {
  std::erase_if(places_, [&](const auto& place) { return place.first.second == sequence; });
}

const DeviceMirror::Rows& DeviceMirror::rows(std::int64_t layer, std::int64_t sequence, Side side) const {
  return places_.at({layer, sequence})[at(side)];
}

const std::uint16_t* DeviceMirror::sink(std::int64_t layer, std::int64_t sequence, Side side) const {
  return bits(rows(layer, sequence, side).sink);
}

const std::uint16_t* DeviceMirror::ring(std::int64_t layer, std::int64_t sequence, Side side) const {
  return bits(rows(layer, sequence, side).ring);
}

const at::Tensor& DeviceMirror::pool(std::int64_t layer, Side side) const {
  return pools_[static_cast<std::size_t>(layer)][at(side)];
}

const std::uint8_t* DeviceMirror::pages(std::int64_t layer, Side side) const {
  const at::Tensor& x = pool(layer, side);
  return x.defined() ? x.const_data_ptr<std::uint8_t>() : nullptr;
}

kernels::GeneralSequenceSide DeviceMirror::sequence_side(std::int64_t layer, std::int64_t sequence, Side side,
                                                         const HeldSide& held, const std::int32_t* page_table) const {
  const Rows& copy = rows(layer, sequence, side);
  const auto number = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  kernels::GeneralSequenceSide s{};
  s.sink = {bits(copy.sink), 0, copy.sink.defined() ? number(copy.sink.size(0)) : 1};
  const std::int64_t ring = std::max<std::int64_t>(held.ring_rows, 1);
  s.recent = {bits(copy.ring), number(held.body % ring), number(ring)};
  s.page_table = page_table;
  s.sink_tokens = number(std::min(held.tokens, held.sink_rows));
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
