#include "cache/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/errors.h"
#include "layout/float16.h"

namespace oscar {
namespace {

std::size_t as_index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Makes room for `size` elements. Grows by an eighth, at most to `limit`, so that little memory is unused.
template <class T>
void grow(std::vector<T>& storage, std::size_t size, std::size_t least_step, std::size_t limit) {
  if (size > storage.capacity()) {
    const std::size_t step = std::max(storage.capacity() / 8, least_step);
    storage.reserve(std::max(size, std::min(limit, storage.capacity() + step)));
  }
  if (size > storage.size()) storage.resize(size);
}

template <class T>
std::uint64_t held_bytes(const std::vector<T>& storage) {
  return storage.capacity() * sizeof(T);
}

[[noreturn]] void refuse(std::int64_t layer, Side side, std::int64_t token, std::int64_t head, std::int64_t channel,
                         float value) {
  throw NumericalError("layer " + std::to_string(layer) + ", KV head " + std::to_string(head) +
                       (side == Side::kKey ? ", key" : ", value") + " of token " + std::to_string(token) + ": holds " +
                       (std::isnan(value) ? "a NaN" : "an infinity") + " in channel " + std::to_string(channel) +
                       "; expected finite keys and values");
}

}  // namespace

CacheWindows all_in_sink() { return {std::numeric_limits<std::int32_t>::max(), 0, 1}; }

// One side of one layer of one sequence.
struct KvCache::Rows {
  std::int64_t tokens = 0;
  std::vector<std::uint16_t> sink, ring;  // [rows so far, Hkv, d] BF16; token i after the sink is in row i mod ring
};

struct KvCache::Sequence {
  std::vector<std::int32_t> table;               // page ids
  std::array<std::vector<Rows>, 2> sides;        // [layers]
  std::vector<std::vector<std::uint16_t>> rope;  // [layers], [tokens, R]
};

KvCache::KvCache(KvCacheSpec spec) : spec_(std::move(spec)) { pools_.resize(spec_.sides[0].pages.size()); }

KvCache::~KvCache() = default;

// Tokens that leave the recent windows are coded first; then the new rows enter the windows and may overwrite them.
void KvCache::append_rows(std::int64_t layer, const std::vector<NextRows>& rows, const ForEachPart& for_each_part) {
  const auto each = [&](const auto& call) {
    for (const NextRows& next : rows) {
      std::unique_ptr<Sequence>& slot = sequences_[next.sequence];
      if (!slot) {
        slot = std::make_unique<Sequence>();
        for (auto& side : slot->sides) side.resize(spec_.sides[0].pages.size());
        slot->rope.resize(spec_.sides[0].pages.size());
      }
      const std::array<std::uint16_t const*, 2> sources{next.keys, next.values};
      for (std::size_t i = 0; i < (spec_.rope_dim > 0 ? 1 : 2); ++i) {
        call(*slot, i == 0 ? Side::kKey : Side::kValue, NewRows{sources[i], next.count});
      }
    }
  };
  std::vector<Part> parts;
  each([&](Sequence& of, Side side, const NewRows& added) { add_parts(of, layer, side, added, parts); });
  if (!parts.empty()) {
    for_each_part(std::ssize(parts), [&](std::int64_t i) { code(parts[as_index(i)], layer); });
  }
  each([&](Sequence& of, Side side, const NewRows& added) { keep(of, layer, side, added); });
  for (const NextRows& next : rows) {
    std::vector<std::uint16_t>& held = sequences_[next.sequence]->rope[as_index(layer)];
    const std::size_t before = held.size(), added = as_index(next.count * spec_.rope_dim);
    grow(held, before + added, as_index(16 * spec_.rope_dim), std::numeric_limits<std::size_t>::max());
    std::copy_n(next.rope, added, held.begin() + static_cast<std::ptrdiff_t>(before));
  }
}

// Allocates pages for tokens that leave the recent window, and lists the parts to code.
void KvCache::add_parts(Sequence& sequence, std::int64_t layer, Side side, const NewRows& added,
                        std::vector<Part>& parts) {
  const CacheWindows& w = spec(side).windows;
  const std::int64_t held = sequence.sides[at(side)].at(as_index(layer)).tokens;
  const std::int64_t begin = w.quantized_end(held) - w.sink, end = w.quantized_end(held + added.count) - w.sink;
  if (begin >= end) return;
  const CachePages& pages = *spec(side).pages[as_index(layer)];
  const std::int64_t each = pages.tokens(), first = begin / each, last = (end - 1) / each;
  make_pages(sequence, layer, last + 1);
  for (std::int64_t page = first; page <= last; ++page) {
    parts.push_back({&sequence, side, std::max(begin, page * each), std::min(end, (page + 1) * each), added});
  }
}

void KvCache::keep(Sequence& sequence, std::int64_t layer, Side side, const NewRows& added) {
  const CacheWindows& w = spec(side).windows;
  Rows& rows = sequence.sides[at(side)].at(as_index(layer));
  const std::int64_t width = spec_.kv_heads * spec_.head_dim, ring = w.recent + w.flush;
  for (std::int64_t i = 0; i < added.count; ++i) {
    const std::int64_t position = rows.tokens++;
    const bool in_sink = position < w.sink;
    const std::int64_t to = in_sink ? position : (position - w.sink) % ring;
    std::vector<std::uint16_t>& tier = in_sink ? rows.sink : rows.ring;
    grow(tier, as_index((to + 1) * width), as_index(16 * width), as_index((in_sink ? w.sink : ring) * width));
    std::copy_n(added.rows + i * width, width, tier.begin() + to * width);
  }
}

void KvCache::make_pages(Sequence& sequence, std::int64_t layer, std::int64_t count) {
  const std::size_t bytes = as_index(spec(Side::kKey).pages[as_index(layer)]->bytes());
  const auto fit = [&] {
    grow(pools_[as_index(layer)], as_index(ids_.pages_ever()) * bytes, bytes, std::numeric_limits<std::size_t>::max());
  };
  while (std::ssize(sequence.table) < count) sequence.table.push_back(ids_.allocate()), fit();
  fit();
}

// Codes a part; its page must exist.
void KvCache::code(const Part& part, std::int64_t layer) {
  const CacheWindows& w = spec(part.side).windows;
  const CachePages& pages = *spec(part.side).pages[as_index(layer)];
  const Rows& held = part.sequence->sides[at(part.side)][as_index(layer)];
  const std::int64_t width = spec_.kv_heads * spec_.head_dim, ring = w.recent + w.flush, page_tokens = pages.tokens();
  const std::int32_t id = part.sequence->table[as_index(part.begin / page_tokens)];
  std::uint8_t* page = pools_[as_index(layer)].data() + as_index(id) * as_index(pages.bytes());
  const std::int64_t count = part.end - part.begin;
  std::vector<float> rows(as_index(count * width));
  for (std::int64_t t = 0; t < count; ++t) {
    const std::int64_t at = part.begin + t;
    const std::int64_t behind = w.sink + at - held.tokens;  // index among the added rows, if not negative
    const std::uint16_t* row = behind >= 0 ? part.added.rows + behind * width : held.ring.data() + at % ring * width;
    for (std::int64_t i = 0; i < width; ++i) {
      const float x = rows[as_index(t * width + i)] = bfloat16_value(row[i]);
      if (std::isfinite(x)) continue;
      refuse(layer, part.side, w.sink + at, i / spec_.head_dim, i % spec_.head_dim, x);
    }
  }
  pages.write(page, static_cast<int>(part.begin % page_tokens), static_cast<int>(count), rows.data());
}

void KvCache::release(std::int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  for (const std::int32_t page : found->second->table) ids_.release(page);
  sequences_.erase(found);
}

std::int64_t KvCache::tokens(std::int64_t layer, std::int64_t id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? 0 : found->second->sides[0].at(as_index(layer)).tokens;
}

const std::uint16_t* KvCache::rope(std::int64_t layer, std::int64_t id) const {
  return sequences_.at(id)->rope.at(as_index(layer)).data();
}

SideView KvCache::view(std::int64_t layer, std::int64_t id, Side asked) const {
  const Side side = spec_.rope_dim > 0 ? Side::kKey : asked;
  const CacheWindows& w = spec(side).windows;
  const Sequence& sequence = *sequences_.at(id);
  const Rows& rows = sequence.sides[at(side)].at(as_index(layer));
  const std::int64_t sink = std::min(rows.tokens, w.sink), ring = w.recent + w.flush;
  SideView view{.sink = {rows.sink.data(), sink, 0, w.sink}, .body = w.quantized_end(rows.tokens) - w.sink};
  view.recent = {rows.ring.data(), rows.tokens - sink - view.body, view.body % ring, ring};
  view.pool = pools_[as_index(layer)].data();
  view.table = sequence.table.data();
  view.pages = spec(side).pages[as_index(layer)].get();
  return view;
}

std::int64_t KvCache::pages_in_use() const { return ids_.pages_in_use(); }

std::uint64_t KvCache::allocated_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& pool : pools_) bytes += held_bytes(pool);
  for (const auto& [id, sequence] : sequences_) {
    bytes += held_bytes(sequence->table);
    for (const auto& side : sequence->sides) {
      for (const Rows& rows : side) bytes += held_bytes(rows.sink) + held_bytes(rows.ring);
    }
    for (const auto& rows : sequence->rope) bytes += held_bytes(rows);
  }
  return bytes;
}

}  // namespace oscar
