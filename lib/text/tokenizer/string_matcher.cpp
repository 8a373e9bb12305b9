#include "text/tokenizer/string_matcher.h"

#include <algorithm>

namespace oscar {
namespace {

std::uint64_t key_of(std::uint32_t node, unsigned char byte) { return ((std::uint64_t{node} << 8) | byte) + 1; }

std::size_t scatter(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15ULL;
  return static_cast<std::size_t>(key ^ (key >> 29));
}

// The slot with the key, or the free slot for it.
std::size_t find_slot(const std::vector<std::uint64_t>& keys, std::uint64_t key) {
  const std::size_t mask = keys.size() - 1;
  std::size_t slot = scatter(key) & mask;
  while (keys[slot] != 0 && keys[slot] != key) slot = (slot + 1) & mask;
  return slot;
}

}  // namespace

void StringMatcher::add(std::string_view text, std::int32_t value) {
  if (text.empty()) return;
  std::uint32_t node = 0;
  for (const char c : text) {
    if (keys_.size() < 2 * values_.size() + 2) grow();
    const auto byte = static_cast<unsigned char>(c);
    const std::size_t slot = find_slot(keys_, key_of(node, byte));
    if (keys_[slot] == 0) {
      keys_[slot] = key_of(node, byte);
      children_[slot] = static_cast<std::uint32_t>(values_.size());
      values_.push_back(-1);
    }
    node = children_[slot];
  }
  if (values_[node] < 0) values_[node] = value;
  first_[static_cast<unsigned char>(text[0])] = true;
}

std::optional<StringMatcher::Hit> StringMatcher::match(std::string_view text, std::size_t at) const {
  std::optional<Hit> longest;
  each(text, at, [&](Hit hit) { longest = hit; });
  return longest;
}

std::uint32_t StringMatcher::child(std::uint32_t node, unsigned char byte) const {
  const std::uint64_t key = key_of(node, byte);
  const std::size_t slot = find_slot(keys_, key);
  return keys_[slot] == key ? children_[slot] : 0;
}

void StringMatcher::grow() {
  std::vector<std::uint64_t> keys(std::max<std::size_t>(64, 2 * keys_.size()), 0);
  std::vector<std::uint32_t> children(keys.size());
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i] == 0) continue;
    const std::size_t slot = find_slot(keys, keys_[i]);
    keys[slot] = keys_[i];
    children[slot] = children_[i];
  }
  keys_ = std::move(keys);
  children_ = std::move(children);
}

}  // namespace oscar
