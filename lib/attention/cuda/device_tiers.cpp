#include "attention/cuda/device_tiers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "attention/cuda/device_launch.h"

namespace oscar {
namespace {

constexpr std::int64_t kSlack = 64;  // spare tokens of a window, after which its rows are moved to the front

}  // namespace

DeviceTiers::DeviceTiers(const KvCacheSpec& spec, at::Device device)
    : spec_(spec),
      device_(device),
      layers_(spec.sides[0].pages.size()),
      places_{RepeatedUpload<std::int64_t>(device), RepeatedUpload<std::int64_t>(device)} {}

DeviceTiers::Sequence& DeviceTiers::sequence(std::int64_t id) {
  const auto [found, is_new] = sequences_.try_emplace(id);
  if (is_new) {
    found->second.slot = slots_.allocate();
    found->second.held.resize(layers_.size());
  }
  return found->second;
}

// Row of a token in its sequence's slot.
std::int64_t DeviceTiers::row_of(const Held& held, Side side, std::int64_t token) const {
  const std::int64_t sink = spec(side).windows.sink;
  return token < sink ? token : token - held.first;
}

// Rows of a slot if no long call needs more; a cache without codes holds all tokens.
std::int64_t DeviceTiers::usual_capacity(Side side, std::int64_t tokens) const {
  const CacheWindows& w = spec(side).windows;
  return w.recent == 0 && w.sink > tokens ? tokens + tokens / 8 + kSlack : w.sink + w.recent + w.flush + kSlack;
}

void DeviceTiers::resize(at::Tensor& rows, std::int64_t slots, std::int64_t capacity) const {
  const std::int64_t held_slots = rows.defined() ? rows.size(0) : 0, held = rows.defined() ? rows.size(1) : 0;
  if (slots == held_slots && capacity == held) return;
  const at::Tensor other =
      at::empty({slots, capacity, spec_.kv_heads, spec_.head_dim}, at::TensorOptions(at::kBFloat16).device(device_));
  if (held_slots > 0) {
    const std::int64_t both = std::min(held_slots, slots), kept = std::min(capacity, held);
    other.narrow(0, 0, both).narrow(1, 0, kept).copy_(rows.narrow(0, 0, both).narrow(1, 0, kept));
  }
  rows = other;
}

// Drops the rows of coded tokens, to make room for others.
void DeviceTiers::move_to_front(const Sequence& s, Held& held, LayerSide& to, Side side) const {
  const std::int64_t sink = spec(side).windows.sink, gone = held.coded - held.first,
                     kept = held.tokens - sink - held.coded;
  if (gone == 0) return;
  if (kept > 0) {
    const at::Tensor rows = to.rows[s.slot];
    rows.narrow(0, sink, kept).copy_(rows.narrow(0, sink + gone, kept).clone());
  }
  held.first = held.coded;
}

void DeviceTiers::make_room(std::int64_t layer, const SequenceBatch& batch, Side side) {
  LayerSide& to = of(layer, at(side));
  std::int64_t capacity = to.rows.defined() ? to.rows.size(1) : 0;
  for (std::size_t s = 0; s < batch.ids.size(); ++s) {
    if (batch.lengths[s] == 0) continue;
    Sequence& here = sequence(batch.ids[s]);
    Held& held = here.held[static_cast<std::size_t>(layer)][at(side)];
    const std::int64_t tokens = held.tokens + batch.lengths[s];
    if (row_of(held, side, tokens - 1) >= capacity) move_to_front(here, held, to, side);
    if (const std::int64_t last = row_of(held, side, tokens - 1); last >= capacity) {
      capacity = std::max(usual_capacity(side, tokens), last + 1);
    }
  }
  resize(to.rows, slots_.pages_ever(), capacity);
}

std::vector<kernels::PageRun> DeviceTiers::append(std::int64_t layer, const SequenceBatch& batch, Side side,
                                                  const at::Tensor& rows) {
  make_room(layer, batch, side);
  LayerSide& to = of(layer, at(side));
  const std::int64_t capacity = to.rows.size(1);
  std::vector<std::int64_t> places;
  std::vector<kernels::PageRun> runs;
  for (std::size_t s = 0; s < batch.ids.size(); ++s) {
    if (batch.lengths[s] == 0) continue;
    Sequence& here = sequence(batch.ids[s]);
    Held& held = here.held[static_cast<std::size_t>(layer)][at(side)];
    for (std::int64_t i = 0; i < batch.lengths[s]; ++i) {
      places.push_back(here.slot * capacity + row_of(held, side, held.tokens + i));
    }
    held.tokens += batch.lengths[s];
    add_runs(layer, here, side, capacity, runs);
  }
  const std::int64_t count = std::ssize(places);
  const at::Tensor index = at::from_blob(const_cast<std::int64_t*>(places_[at(side)](places)), {count},
                                         at::TensorOptions(at::kLong).device(device_));
  to.rows.view({-1, spec_.kv_heads, spec_.head_dim}).index_copy_(0, index, rows);
  return runs;
}

// Adds runs for tokens that have left the recent window of a sequence, into existing pages.
void DeviceTiers::add_runs(std::int64_t layer, Sequence& s, Side side, std::int64_t capacity,
                           std::vector<kernels::PageRun>& runs) {
  const CacheWindows& w = spec(side).windows;
  Held& held = s.held[static_cast<std::size_t>(layer)][at(side)];
  const std::int64_t end = w.quantized_end(held.tokens) - w.sink;
  if (end <= held.coded) return;
  const CachePages& pages = *spec(side).pages[static_cast<std::size_t>(layer)];
  const std::int64_t page_tokens = pages.tokens();
  std::vector<std::int32_t>& ids = s.tables[pool_of(side)];
  PageAllocator& allocator = page_ids_[pool_of(side)];
  while (std::ssize(ids) * page_tokens < end) ids.push_back(allocator.allocate());
  at::Tensor& pool = of(layer, pool_of(side)).pages;
  const std::int64_t there = pool.defined() ? pool.size(0) : 0, needed = allocator.pages_ever();
  if (needed > there) {
    const at::Tensor larger =
        at::zeros({std::max(needed, there + there / 8), pages.bytes()}, at::TensorOptions(at::kByte).device(device_));
    if (there > 0) larger.narrow(0, 0, there).copy_(pool);
    pool = larger;
  }
  while (held.coded < end) {
    const std::int64_t slot = held.coded % page_tokens, tokens = std::min(end - held.coded, page_tokens - slot);
    const std::int64_t token = w.sink + held.coded;
    runs.push_back({to_int32(s.slot * capacity + row_of(held, side, token)), to_int32(tokens),
                    ids[static_cast<std::size_t>(held.coded / page_tokens)], to_int32(slot), to_int32(token)});
    held.coded += tokens;
  }
}

void DeviceTiers::trim(std::int64_t layer) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    LayerSide& to = of(layer, at(side));
    if (!to.rows.defined()) continue;
    std::int64_t longest = 0;
    for (const auto& [id, s] : sequences_) {
      longest = std::max(longest, s.held[static_cast<std::size_t>(layer)][at(side)].tokens);
    }
    const std::int64_t usual = usual_capacity(side, longest);
    if (to.rows.size(1) <= 2 * usual) continue;
    for (auto& [id, s] : sequences_) move_to_front(s, s.held[static_cast<std::size_t>(layer)][at(side)], to, side);
    resize(to.rows, to.rows.size(0), usual);
  }
}

void DeviceTiers::release(std::int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  for (const std::size_t of : {std::size_t{0}, std::size_t{1}}) {
    for (const std::int32_t page : found->second.tables[of]) page_ids_[of].release(page);
  }
  slots_.release(to_int32(found->second.slot));
  sequences_.erase(found);
}

std::int64_t DeviceTiers::tokens(std::int64_t layer, std::int64_t id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? 0 : found->second.held[static_cast<std::size_t>(layer)][0].tokens;
}

std::int64_t DeviceTiers::coded(std::int64_t layer, std::int64_t id, Side side) const {
  return sequences_.at(id).held[static_cast<std::size_t>(layer)][at(side)].coded;
}

const at::Tensor& DeviceTiers::rows(std::int64_t layer, Side side) const { return of(layer, at(side)).rows; }
const at::Tensor& DeviceTiers::pool(std::int64_t layer, Side side) const { return of(layer, pool_of(side)).pages; }

const std::vector<std::int32_t>& DeviceTiers::table(std::int64_t id, Side side) const {
  return sequences_.at(id).tables[pool_of(side)];
}

kernels::FallbackSequenceSide DeviceTiers::view(std::int64_t layer, std::int64_t id, Side side, std::int64_t tokens,
                                                const std::int32_t* page_table) const {
  const CacheWindows& w = spec(side).windows;
  const Sequence& s = sequences_.at(id);
  const Held& held = s.held[static_cast<std::size_t>(layer)][at(side)];
  const at::Tensor& rows = of(layer, at(side)).rows;
  const std::int64_t width = spec_.kv_heads * spec_.head_dim, capacity = rows.size(1);
  const auto* slot =
      reinterpret_cast<const std::uint16_t*>(rows.const_data_ptr<at::BFloat16>()) + s.slot * capacity * width;
  const std::int64_t body = w.quantized_end(tokens) - w.sink, sink_rows = std::min(w.sink, capacity);
  kernels::FallbackSequenceSide view{};
  view.sink = {slot, 0, to_int32(capacity)};
  view.recent = {slot + sink_rows * width, to_int32(body - held.first),
                 to_int32(std::max<std::int64_t>(capacity - sink_rows, 1))};
  view.page_table = page_table;
  view.sink_tokens = to_int32(std::min(tokens, w.sink));
  view.body_tokens = to_int32(body);
  return view;
}

std::uint64_t DeviceTiers::bytes() const {
  std::uint64_t total = 0;
  for (const auto& sides : layers_) {
    for (const LayerSide& side : sides) {
      for (const at::Tensor& x : {side.rows, side.pages}) total += x.defined() ? x.nbytes() : 0;
    }
  }
  return total;
}

}  // namespace oscar
