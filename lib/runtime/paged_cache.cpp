#include "runtime/paged_cache.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/errors.h"
#include "codec/float16.h"

namespace oscar {
namespace {

// Room for `size` elements, growing by an eighth so that little is held unused.
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

}  // namespace

std::int32_t PageAllocator::allocate() {
  ++in_use_;
  if (!free_.empty()) {
    const std::int32_t page = free_.back();
    free_.pop_back();
    used_[static_cast<std::size_t>(page)] = true;
    return page;
  }
  if (used_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw EnvironmentError("the cache is out of page numbers");
  }
  used_.push_back(true);
  return static_cast<std::int32_t>(used_.size() - 1);
}

void PageAllocator::release(std::int32_t page) {
  if (page < 0 || static_cast<std::size_t>(page) >= used_.size() || !used_[static_cast<std::size_t>(page)]) {
    throw std::invalid_argument("page " + std::to_string(page) + " is not in use");
  }
  used_[static_cast<std::size_t>(page)] = false;
  free_.push_back(page);
  --in_use_;
}

struct PagedCache::Layer {
  LayerCacheSpec spec;
  PageLayout layout;
  SidePages key_pages, value_pages;
  std::vector<float> key_sigma, value_sigma;  // [Hkv, 4]
  std::vector<std::uint8_t> pool;             // [pages, Hkv, layout.bytes()]

  explicit Layer(LayerCacheSpec s)
      : spec(std::move(s)),
        layout(page_layout(spec.key.at(0).code, spec.value.at(0).code)),
        key_pages(layout.key, Side::kKey),
        value_pages(layout.value, Side::kValue) {
    for (const RowCodec& codec : spec.key) key_sigma.insert(key_sigma.end(), codec.sigma.begin(), codec.sigma.end());
    for (const RowCodec& codec : spec.value) {
      value_sigma.insert(value_sigma.end(), codec.sigma.begin(), codec.sigma.end());
    }
  }
};

struct PagedCache::Sequence {
  struct Tier {
    std::vector<std::uint16_t> key, value;  // [tokens, Hkv, d] BF16
  };
  struct State {
    std::int64_t tokens = 0;
    Tier sink, recent;
  };
  std::vector<std::int32_t> pages;  // of all layers
  std::vector<State> layers;
};

PagedCache::PagedCache(std::vector<LayerCacheSpec> layers, std::int32_t kv_heads, std::int32_t head_dim,
                       const WindowPolicy& windows)
    : kv_heads_(kv_heads), head_dim_(head_dim), windows_(windows) {
  for (LayerCacheSpec& spec : layers) layers_.push_back(std::make_unique<Layer>(std::move(spec)));
}

PagedCache::~PagedCache() = default;

void PagedCache::append(std::int64_t layer_index, std::int64_t id, const std::uint16_t* key,
                        const std::uint16_t* value) {
  Layer& layer = *layers_.at(static_cast<std::size_t>(layer_index));
  std::unique_ptr<Sequence>& slot = sequences_[id];
  if (!slot) {
    slot = std::make_unique<Sequence>();
    slot->layers.resize(layers_.size());
  }
  Sequence::State& state = slot->layers[static_cast<std::size_t>(layer_index)];
  const std::size_t row = static_cast<std::size_t>(kv_heads_) * static_cast<std::size_t>(head_dim_);
  const std::int64_t position = state.tokens;
  const bool in_sink = !layer.spec.quantised || position < windows_.sink;
  const std::int64_t capacity = windows_.recent + windows_.flush;
  const std::int64_t limit =
      !layer.spec.quantised ? std::numeric_limits<std::int32_t>::max() : (in_sink ? windows_.sink : capacity);
  const std::int64_t at = in_sink ? position : (position - windows_.sink) % capacity;
  Sequence::Tier& tier = in_sink ? state.sink : state.recent;
  for (auto& [storage, source] : {std::pair{&tier.key, key}, {&tier.value, value}}) {
    grow(*storage, static_cast<std::size_t>(at + 1) * row, 16 * row, static_cast<std::size_t>(limit) * row);
    std::copy_n(source, row, storage->begin() + at * static_cast<std::int64_t>(row));
  }
  state.tokens = position + 1;
  if (!layer.spec.quantised) return;
  const std::int64_t begin = windows_.quantised_end(position), end = windows_.quantised_end(position + 1);
  if (end > begin) quantise(layer, layer_index, *slot, begin, end);
}

// Moves the tokens [begin, end) of a sequence from the recent window to its pages.
void PagedCache::quantise(Layer& layer, std::int64_t layer_index, Sequence& sequence, std::int64_t begin,
                          std::int64_t end) {
  const Sequence::State& state = sequence.layers[static_cast<std::size_t>(layer_index)];
  const std::int64_t capacity = windows_.recent + windows_.flush, page_bytes = layer.layout.bytes();
  const std::int64_t pages = (end - windows_.sink + kPageTokens - 1) / kPageTokens;
  while (static_cast<std::int64_t>(sequence.pages.size()) < pages) sequence.pages.push_back(allocator_.allocate());
  const auto pool_page = static_cast<std::size_t>(page_bytes * kv_heads_);
  grow(layer.pool, static_cast<std::size_t>(allocator_.pages_ever()) * pool_page, pool_page,
       std::numeric_limits<std::size_t>::max());

  float row[kMaxHeadDim];
  std::uint8_t codes[kMaxHeadDim], params[kMaxHeadDim * 4];
  for (std::int64_t position = begin; position < end; ++position) {
    const std::int64_t body = position - windows_.sink, ring = body % capacity;
    const std::int64_t page = sequence.pages[static_cast<std::size_t>(body / kPageTokens)];
    for (std::int64_t head = 0; head < kv_heads_; ++head) {
      std::uint8_t* bytes = layer.pool.data() + (page * kv_heads_ + head) * page_bytes;
      for (const Side side : {Side::kKey, Side::kValue}) {
        const auto& window = side == Side::kKey ? state.recent.key : state.recent.value;
        const std::uint16_t* source = window.data() + (ring * kv_heads_ + head) * head_dim_;
        for (int i = 0; i < head_dim_; ++i) row[i] = bfloat16_value(source[i]);
        const RowCodec& codec =
            (side == Side::kKey ? layer.spec.key : layer.spec.value)[static_cast<std::size_t>(head)];
        try {
          encode_rows(codec, row, 1, 0, codes, params);
        } catch (const NumericalError& e) {
          throw NumericalError("layer " + std::to_string(layer_index) + ", KV head " + std::to_string(head) +
                               (side == Side::kKey ? ", key" : ", value") + " of token " + std::to_string(position) +
                               ": " + e.what());
        }
        (side == Side::kKey ? layer.key_pages : layer.value_pages)
            .write(bytes, static_cast<int>(body % kPageTokens), codes, params);
      }
    }
  }
}

void PagedCache::release(std::int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  for (const std::int32_t page : found->second->pages) allocator_.release(page);
  sequences_.erase(found);
}

std::int64_t PagedCache::tokens(std::int64_t layer, std::int64_t id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? 0 : found->second->layers.at(static_cast<std::size_t>(layer)).tokens;
}

SequenceView PagedCache::view(std::int64_t layer_index, std::int64_t id) const {
  const Layer& layer = *layers_.at(static_cast<std::size_t>(layer_index));
  const Sequence& sequence = *sequences_.at(id);
  const Sequence::State& state = sequence.layers[static_cast<std::size_t>(layer_index)];
  const std::int64_t n = state.tokens, sink = layer.spec.quantised ? std::min(n, windows_.sink) : n;
  const std::int64_t body = layer.spec.quantised ? windows_.quantised_end(n) - windows_.sink : 0;
  SequenceView view;
  const auto tokens = [](std::int64_t v) { return static_cast<std::int32_t>(v); };
  view.sink = {state.sink.key.data(), state.sink.value.data(), tokens(sink), 0,
               tokens(std::max<std::int64_t>(sink, 1))};
  const std::int64_t capacity = windows_.recent + windows_.flush;
  view.recent = {state.recent.key.data(), state.recent.value.data(), tokens(n - sink - body), tokens(body % capacity),
                 tokens(capacity)};
  view.body_tokens = tokens(body);
  view.page_table = sequence.pages.data();
  return view;
}

void PagedCache::describe(std::int64_t layer_index, DecodeAttentionParams& params) const {
  const Layer& layer = *layers_.at(static_cast<std::size_t>(layer_index));
  params.kv_heads = kv_heads_;
  params.head_dim = head_dim_;
  params.pages = layer.pool.data();
  params.page = layer.layout;
  params.key_sigma = layer.key_sigma.data();
  params.value_sigma = layer.value_sigma.data();
}

const SidePages& PagedCache::key_pages(std::int64_t layer) const {
  return layers_.at(static_cast<std::size_t>(layer))->key_pages;
}
const SidePages& PagedCache::value_pages(std::int64_t layer) const {
  return layers_.at(static_cast<std::size_t>(layer))->value_pages;
}

std::uint64_t PagedCache::allocated_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& layer : layers_) bytes += held_bytes(layer->pool);
  for (const auto& [id, sequence] : sequences_) {
    bytes += held_bytes(sequence->pages);
    for (const Sequence::State& state : sequence->layers) {
      for (const Sequence::Tier* tier : {&state.sink, &state.recent}) {
        bytes += held_bytes(tier->key) + held_bytes(tier->value);
      }
    }
  }
  return bytes;
}

}  // namespace oscar
