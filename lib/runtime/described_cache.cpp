#include "runtime/described_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/errors.h"
#include "codec/float16.h"
#include "methods/group_codes.h"
#include "methods/hadamard_rows.h"

namespace oscar {
namespace {

constexpr int kPage = kDescribedPageTokens;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Room for `size` elements, growing by an eighth so that little is held unused.
template <class T>
void grow(std::vector<T>& storage, std::size_t size, std::size_t step) {
  if (size > storage.capacity())
    storage.reserve(std::max(size, storage.capacity() + std::max(storage.capacity() / 8, step)));
  if (size > storage.size()) storage.resize(size);
}

void add_row(float weight, const float* row, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] += weight * row[i];
}

float dot_bits(const float* q, const std::uint16_t* bits, std::int64_t n) {
  float lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int l = 0; l < 8; ++l) lanes[l] += q[i + l] * bfloat16_value(bits[i + l]);
  }
  for (; i < n; ++i) lanes[0] += q[i] * bfloat16_value(bits[i]);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace

// What all sequences share of one side, all layers.
struct DescribedCache::SideStore {
  SideDescription description;
  DescribedPages pages;
  std::int64_t order;                            // of the Hadamard blocks; 0: none
  std::int64_t norm_bytes;                       // at the start of a page
  std::int64_t page_bytes;                       // of all heads
  PageAllocator allocator;                       // page ids, the same in all layers
  std::vector<std::vector<std::uint8_t>> pools;  // [layers]

  SideStore(const SideDescription& side, std::int64_t layers, std::int64_t kv_heads, std::int64_t d)
      : description(side),
        pages(side, static_cast<int>(d)),
        order(side.basis == CacheBasis::kHadamard ? hadamard_order_of(side, d) : 0),
        norm_bytes(side.token_norm ? kPage * 4 : 0),
        page_bytes(norm_bytes + kv_heads * pages.bytes()),
        pools(index(layers)) {}

  std::int64_t capacity() const { return description.windows.recent + description.windows.flush; }  // of the ring
};

// One side of one layer of one sequence.
struct DescribedCache::SideState {
  std::int64_t tokens = 0;
  std::vector<std::uint16_t> sink, ring;  // [tokens, Hkv, d] BF16; token i behind the sink is in row i mod capacity
};

struct DescribedCache::Sequence {
  std::vector<std::int32_t> pages[2];
  std::vector<SideState> sides[2];  // [layers]
};

DescribedCache::DescribedCache(const MethodDescription& method, std::int64_t layers, std::int64_t kv_heads,
                               std::int64_t head_dim)
    : layers_(layers), kv_heads_(kv_heads), head_dim_(head_dim) {
  if (!has_pages(method)) throw std::invalid_argument("method " + method.id + " has no pages");
  stores_[0] = std::make_unique<SideStore>(method.key, layers, kv_heads, head_dim);
  stores_[1] = std::make_unique<SideStore>(method.value, layers, kv_heads, head_dim);
}

DescribedCache::~DescribedCache() = default;

void DescribedCache::append(std::int64_t layer, std::int64_t id, const std::uint16_t* key, const std::uint16_t* value) {
  std::unique_ptr<Sequence>& slot = sequences_[id];
  if (!slot) {
    slot = std::make_unique<Sequence>();
    for (auto& sides : slot->sides) sides.resize(index(layers_));
  }
  const std::int64_t width = kv_heads_ * head_dim_;
  for (const int which : {0, 1}) {
    SideStore& store = *stores_[which];
    SideState& state = slot->sides[which][index(layer)];
    const WindowPolicy& windows = store.description.windows;
    const std::int64_t position = state.tokens++;
    const bool in_sink = position < windows.sink;
    const std::int64_t at = in_sink ? position : (position - windows.sink) % store.capacity();
    std::vector<std::uint16_t>& rows = in_sink ? state.sink : state.ring;
    grow(rows, index((at + 1) * width), index(16 * width));
    std::copy_n(which == 0 ? key : value, width, rows.begin() + at * width);

    std::int64_t begin = windows.quantised_end(position) - windows.sink;  // body tokens
    const std::int64_t end = windows.quantised_end(position + 1) - windows.sink;
    std::vector<float> buffer;
    while (begin < end) {
      const std::int64_t in_page = begin % kPage;
      const std::int64_t most = store.pages.least_tokens() > 1 ? store.pages.least_tokens() : kPage - in_page;
      const std::int64_t count = std::min(end - begin, most);
      std::vector<std::int32_t>& table = slot->pages[which];
      while (std::ssize(table) <= begin / kPage) table.push_back(store.allocator.allocate());
      std::vector<std::uint8_t>& pool = store.pools[index(layer)];
      grow(pool, index(store.allocator.pages_ever() * store.page_bytes), index(store.page_bytes));
      std::uint8_t* page = pool.data() + table[index(begin / kPage)] * store.page_bytes;

      buffer.resize(index(count * width));
      for (std::int64_t t = 0; t < count; ++t) {
        const std::uint16_t* row = state.ring.data() + (begin + t) % store.capacity() * width;
        for (std::int64_t i = 0; i < width; ++i) {
          buffer[index(t * width + i)] = bfloat16_value(row[i]);
          if (!std::isfinite(buffer[index(t * width + i)])) {
            throw NumericalError("layer " + std::to_string(layer) + ", KV head " + std::to_string(i / head_dim_) +
                                 (which == 0 ? ", key" : ", value") + " of token " +
                                 std::to_string(windows.sink + begin + t) + " is not finite (NaN or infinity)");
          }
        }
      }
      if (store.order > 0) hadamard_rows(buffer.data(), count, width, width, store.order);
      if (store.norm_bytes > 0) {
        auto* norms = reinterpret_cast<float*>(page) + in_page;
        for (std::int64_t t = 0; t < count; ++t) {
          float* row = buffer.data() + t * width;
          norms[t] = group_codes::token_norm(row, width);
          for (std::int64_t i = 0; i < width; ++i) row[i] /= norms[t];
        }
      }
      for (std::int64_t h = 0; h < kv_heads_; ++h) {
        store.pages.write(page + store.norm_bytes + h * store.pages.bytes(), static_cast<int>(in_page),
                          static_cast<int>(count), buffer.data() + h * head_dim_, width);
      }
      begin += count;
    }
  }
}

void DescribedCache::release(std::int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  for (const int which : {0, 1}) {
    for (const std::int32_t page : found->second->pages[which]) stores_[which]->allocator.release(page);
  }
  sequences_.erase(found);
}

std::int64_t DescribedCache::tokens(std::int64_t layer, std::int64_t id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? 0 : found->second->sides[0][index(layer)].tokens;
}

const DescribedPages& DescribedCache::pages(Side side) const { return stores_[side == Side::kKey ? 0 : 1]->pages; }

const std::uint8_t* DescribedCache::page(std::int64_t layer, std::int64_t id, Side side, std::int64_t body_token,
                                         std::int64_t kv_head) const {
  const int which = side == Side::kKey ? 0 : 1;
  const SideStore& store = *stores_[which];
  const std::int64_t page = sequences_.at(id)->pages[which][index(body_token / kPage)];
  return store.pools[index(layer)].data() + page * store.page_bytes + store.norm_bytes + kv_head * store.pages.bytes();
}

DescribedSideView DescribedCache::view(std::int64_t layer, std::int64_t id, Side side) const {
  const int which = side == Side::kKey ? 0 : 1;
  const SideStore& store = *stores_[which];
  const Sequence& sequence = *sequences_.at(id);
  const SideState& state = sequence.sides[which][index(layer)];
  const WindowPolicy& w = store.description.windows;
  const std::vector<std::uint8_t>& pool = store.pools[index(layer)];
  return {pool.data(),
          std::ssize(pool) / store.page_bytes,
          store.page_bytes,
          store.norm_bytes,
          &sequence.pages[which],
          &state.sink,
          &state.ring,
          state.tokens,
          std::max<std::int64_t>(w.quantised_end(state.tokens) - w.sink, 0),
          w.sink,
          store.capacity()};
}

float DescribedCache::norm(std::int64_t layer, std::int64_t id, Side side, std::int64_t body_token) const {
  const SideStore& store = *stores_[side == Side::kKey ? 0 : 1];
  if (store.norm_bytes == 0) return 1.0f;
  const std::uint8_t* start = page(layer, id, side, body_token, 0) - store.norm_bytes;
  return reinterpret_cast<const float*>(start)[body_token % kPage];
}

void DescribedCache::attend(std::int64_t layer, std::int64_t id, std::int64_t kv_head, const DescribedQuery& p) const {
  const Sequence& sequence = *sequences_.at(id);
  const std::int64_t group = p.query_heads / kv_heads_, d = head_dim_, width = kv_heads_ * d;
  const std::int64_t n = sequence.sides[0][index(layer)].tokens;
  const std::int64_t first = p.sliding_window > 0 ? std::max<std::int64_t>(0, n - p.sliding_window) : 0;
  const int queries = static_cast<int>(group);
  std::vector<float> plain(p.query + kv_head * group * d, p.query + (kv_head + 1) * group * d);
  for (float& x : plain) x *= p.softmax_scale;

  // Logits [group, n].
  std::vector<float> logits(index(group * n), kHidden), dots(index(group * kPage));
  {
    const SideStore& store = *stores_[0];
    const SideState& state = sequence.sides[0][index(layer)];
    const WindowPolicy& w = store.description.windows;
    const std::int64_t sink = std::min(n, w.sink), body = std::max<std::int64_t>(w.quantised_end(n) - w.sink, 0);
    std::vector<float> rotated = plain;
    if (store.order > 0) hadamard_rows(rotated.data(), group, d, d, store.order);
    const auto plain_keys = [&](std::int64_t j, const std::uint16_t* row) {
      for (std::int64_t h = 0; j >= first && h < group; ++h) {
        logits[index(h * n + j)] = dot_bits(plain.data() + h * d, row + kv_head * d, d);
      }
    };
    for (std::int64_t j = 0; j < sink; ++j) plain_keys(j, state.sink.data() + j * width);
    for (std::int64_t b = 0; b < body; b += kPage) {
      const std::int64_t count = std::min<std::int64_t>(kPage, body - b);
      if (sink + b + count <= first) continue;
      store.pages.dots(page(layer, id, Side::kKey, b, kv_head), static_cast<int>(count), rotated.data(), queries,
                       dots.data());
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t j = sink + b + t;
        const float scale = store.norm_bytes > 0 ? norm(layer, id, Side::kKey, b + t) : 1.0f;
        for (std::int64_t h = 0; j >= first && h < group; ++h)
          logits[index(h * n + j)] = scale * dots[index(h * kPage + t)];
      }
    }
    for (std::int64_t j = sink + body; j < n; ++j) {
      plain_keys(j, state.ring.data() + (j - sink) % store.capacity() * width);
    }
  }

  // Softmax; sink logits of the model take their share.
  for (std::int64_t h = 0; h < group; ++h) {
    float* row = logits.data() + h * n;
    const float* sink_logit = p.sink_logits != nullptr ? p.sink_logits + kv_head * group + h : nullptr;
    float largest = sink_logit != nullptr ? *sink_logit : kHidden;
    for (std::int64_t j = first; j < n; ++j) {
      if (p.soft_cap > 0.0f) row[j] = p.soft_cap * std::tanh(row[j] / p.soft_cap);
      largest = std::max(largest, row[j]);
    }
    double total = sink_logit != nullptr ? std::exp(*sink_logit - largest) : 0.0;
    for (std::int64_t j = first; j < n; ++j) total += row[j] = std::exp(row[j] - largest);
    for (std::int64_t j = 0; j < first; ++j) row[j] = 0.0f;
    for (std::int64_t j = first; j < n; ++j) row[j] = static_cast<float>(row[j] / total);
  }

  // Values: coded ones are summed in their own basis.
  const SideStore& store = *stores_[1];
  const SideState& state = sequence.sides[1][index(layer)];
  const WindowPolicy& w = store.description.windows;
  const std::int64_t sink = std::min(n, w.sink), body = std::max<std::int64_t>(w.quantised_end(n) - w.sink, 0);
  float* out = p.output + kv_head * group * d;
  std::fill_n(out, group * d, 0.0f);
  std::vector<float> coded(index(group * d), 0.0f), rows(index(kPage * d));
  for (std::int64_t b = 0; b < body; b += kPage) {
    const std::int64_t count = std::min<std::int64_t>(kPage, body - b);
    if (sink + b + count <= first) continue;
    store.pages.read(page(layer, id, Side::kValue, b, kv_head), static_cast<int>(count), rows.data());
    for (std::int64_t h = 0; h < group; ++h) {
      for (std::int64_t t = 0; t < count; ++t) {
        const float scale = store.norm_bytes > 0 ? norm(layer, id, Side::kValue, b + t) : 1.0f;
        add_row(scale * logits[index(h * n + sink + b + t)], rows.data() + t * d, d, coded.data() + h * d);
      }
    }
  }
  if (store.order > 0) hadamard_rows(coded.data(), group, d, d, store.order);
  const auto plain_value = [&](std::int64_t j, const std::uint16_t* row) {
    for (std::int64_t i = 0; i < d; ++i) rows[index(i)] = bfloat16_value(row[kv_head * d + i]);
    for (std::int64_t h = 0; h < group; ++h) add_row(logits[index(h * n + j)], rows.data(), d, out + h * d);
  };
  for (std::int64_t j = 0; j < sink; ++j) plain_value(j, state.sink.data() + j * width);
  for (std::int64_t j = sink + body; j < n; ++j) {
    plain_value(j, state.ring.data() + (j - sink) % store.capacity() * width);
  }
  for (std::int64_t i = 0; i < group * d; ++i) out[i] += coded[index(i)];
}

std::uint64_t DescribedCache::allocated_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& store : stores_) {
    for (const auto& pool : store->pools) bytes += pool.capacity();
  }
  for (const auto& [id, sequence] : sequences_) {
    for (const int which : {0, 1}) {
      bytes += sequence->pages[which].capacity() * sizeof(std::int32_t);
      for (const SideState& s : sequence->sides[which]) bytes += 2 * (s.sink.capacity() + s.ring.capacity());
    }
  }
  return bytes;
}

}  // namespace oscar
