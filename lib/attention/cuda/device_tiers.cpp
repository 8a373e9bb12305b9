#include "attention/cuda/device_tiers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "attention/cuda/device_launch.h"

namespace oscar {
namespace {

// Room for `needed` rows, growing by an eighth, never beyond `most`; new ones are zero.
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

DeviceTiers::DeviceTiers(const KvCacheSpec& spec, at::Device device)
    : spec_(spec), device_(device), pools_(spec.sides[0].pages.size()) {}

DeviceTiers::Rows& DeviceTiers::rows(std::int64_t layer, std::int64_t sequence, Side side) {
  return places_[{layer, sequence}][at(side)];
}
const DeviceTiers::Rows& DeviceTiers::rows(std::int64_t layer, std::int64_t sequence, Side side) const {
  return places_.at({layer, sequence})[at(side)];
}

void DeviceTiers::keep_sink(Rows& held, const at::Tensor& rows, std::int64_t most) const {
  grow(held.sink, held.tokens + rows.size(0), 64, most, {spec_.kv_heads, spec_.head_dim}, rows.options());
  held.sink.narrow(0, held.tokens, rows.size(0)).copy_(rows);
}

std::vector<kernels::PageRun> DeviceTiers::append(std::int64_t layer, std::int64_t sequence, Side side,
                                                  const at::Tensor& rows) {
  const CacheWindows& w = spec(side).windows;
  Rows& held = this->rows(layer, sequence, side);
  const std::int64_t count = rows.size(0), to_sink = std::clamp<std::int64_t>(w.sink - held.tokens, 0, count);
  if (to_sink > 0) keep_sink(held, rows.narrow(0, 0, to_sink), w.sink);
  if (to_sink < count) {
    const at::Tensor behind = rows.narrow(0, to_sink, count - to_sink);
    held.recent = held.recent.defined() && held.recent.size(0) > 0 ? at::cat({held.recent, behind}) : behind;
  }
  held.tokens += count;
  const std::int64_t end = w.quantised_end(held.tokens) - w.sink;
  std::vector<kernels::PageRun> runs;
  if (end <= held.coded) return runs;
  const std::int64_t page_tokens = spec(side).pages[static_cast<std::size_t>(layer)]->tokens();
  make_pages(layer, sequence, side, (end + page_tokens - 1) / page_tokens);
  const std::vector<std::int32_t>& ids = table(sequence, side);
  while (held.coded < end) {
    const std::int64_t page = held.coded / page_tokens, slot = held.coded % page_tokens;
    const std::int64_t tokens = std::min(end - held.coded, page_tokens - slot);
    runs.push_back(
        {to_int32(held.coded - held.first), to_int32(tokens), ids[static_cast<std::size_t>(page)], to_int32(slot)});
    held.coded += tokens;
  }
  return runs;
}

void DeviceTiers::make_pages(std::int64_t layer, std::int64_t sequence, Side side, std::int64_t count) {
  const std::size_t of = pool_of(side);
  std::vector<std::int32_t>& ids = tables_[sequence][of];
  while (std::ssize(ids) < count) ids.push_back(ids_[of].allocate());
  grow(pools_[static_cast<std::size_t>(layer)][of], ids_[of].pages_ever(), 1, INT64_MAX,
       {spec(side).pages[static_cast<std::size_t>(layer)]->bytes()}, at::TensorOptions(at::kByte).device(device_));
}

void DeviceTiers::trim(std::int64_t layer, std::int64_t sequence) {
  for (Rows& held : places_[{layer, sequence}]) {
    if (!held.recent.defined()) continue;
    const std::int64_t coded = held.coded - held.first;
    const at::Tensor rest = held.recent.narrow(0, coded, held.recent.size(0) - coded);
    // A view would keep the memory of all rows of a long call.
    held.recent = rest.storage().nbytes() > 2 * rest.nbytes() ? rest.clone() : rest;
    held.first = held.coded;
  }
}

void DeviceTiers::release(std::int64_t sequence) {
  std::erase_if(places_, [&](const auto& place) { return place.first.second == sequence; });
  const auto found = tables_.find(sequence);
  if (found == tables_.end()) return;
  for (const std::size_t of : {std::size_t{0}, std::size_t{1}}) {
    for (const std::int32_t page : found->second[of]) ids_[of].release(page);
  }
  tables_.erase(found);
}

std::int64_t DeviceTiers::tokens(std::int64_t layer, std::int64_t sequence) const {
  const auto found = places_.find({layer, sequence});
  return found == places_.end() ? 0 : found->second[0].tokens;
}

std::int64_t DeviceTiers::coded(std::int64_t layer, std::int64_t sequence, Side side) const {
  return rows(layer, sequence, side).coded;
}

const at::Tensor& DeviceTiers::recent_rows(std::int64_t layer, std::int64_t sequence, Side side) const {
  return rows(layer, sequence, side).recent;
}

std::int64_t DeviceTiers::recent_first(std::int64_t layer, std::int64_t sequence, Side side) const {
  return rows(layer, sequence, side).first;
}

const at::Tensor& DeviceTiers::pool(std::int64_t layer, Side side) const {
  return pools_[static_cast<std::size_t>(layer)][pool_of(side)];
}

const std::vector<std::int32_t>& DeviceTiers::table(std::int64_t sequence, Side side) const {
  static const std::vector<std::int32_t> kNone;
  const auto found = tables_.find(sequence);
  return found == tables_.end() ? kNone : found->second[pool_of(side)];
}

kernels::FallbackSequenceSide DeviceTiers::view(std::int64_t layer, std::int64_t sequence, Side side,
                                                std::int64_t tokens, const std::int32_t* page_table) const {
  const CacheWindows& w = spec(side).windows;
  const Rows& held = rows(layer, sequence, side);
  const std::int64_t body = w.quantised_end(tokens) - w.sink;
  kernels::FallbackSequenceSide s{};
  s.sink = {bits(held.sink), 0, held.sink.defined() ? to_int32(held.sink.size(0)) : 1};
  s.recent = {bits(held.recent), to_int32(body - held.first),
              held.recent.defined() ? to_int32(held.recent.size(0)) : 1};
  s.page_table = page_table;
  s.sink_tokens = to_int32(std::min(tokens, w.sink));
  s.body_tokens = to_int32(body);
  return s;
}

std::uint64_t DeviceTiers::bytes() const {
  std::uint64_t total = 0;
  const auto add = [&](const at::Tensor& x) { total += x.defined() ? x.storage().nbytes() : 0; };
  for (const auto& sides : pools_) std::for_each(sides.begin(), sides.end(), add);
  for (const auto& [place, sides] : places_) {
    for (const Rows& side : sides) add(side.sink), add(side.recent);
  }
  return total;
}

}  // namespace oscar
