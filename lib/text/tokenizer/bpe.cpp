#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>

#include "base/errors.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

constexpr std::size_t kCacheWords = 1 << 16;
constexpr std::size_t kCacheWordBytes = 256;
constexpr char32_t kDirect = 0x800;  // code points with a direct table
constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

std::size_t mix(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15ULL;
  return static_cast<std::size_t>(key ^ (key >> 29));
}

void refuse_unsupported(const Json& model, const std::string& where) {
  const double dropout = json_number(model, "dropout", where, 0.0);
  if (dropout != 0.0) throw InputError(where + ": BPE dropout makes encoding random; set model.dropout to null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json_string(model, key, where, "").empty()) {
      throw InputError(where + ": model." + key + " is not supported; supported is BPE with none");
    }
  }
}

}  // namespace

void Bpe::MergeTable::build(const std::vector<std::pair<std::uint64_t, Merge>>& merges) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(16, merges.size() * 2));
  mask_ = slots - 1;
  keys_.assign(slots, kEmpty);
  values_.resize(slots);
  for (const auto& [key, merge] : merges) {
    std::size_t slot = mix(key) & mask_;
    while (keys_[slot] != kEmpty && keys_[slot] != key) slot = (slot + 1) & mask_;
    keys_[slot] = key;
    values_[slot] = merge;  // for a repeated pair the later one counts, as in the Python package
  }
}

const Bpe::Merge* Bpe::MergeTable::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  for (std::size_t slot = mix(key) & mask_; keys_[slot] != kEmpty; slot = (slot + 1) & mask_) {
    if (keys_[slot] == key) return &values_[slot];
  }
  return nullptr;
}

Bpe::Bpe(const TokenizerJson& file, const std::string& where) {
  const Json& model = json_object(file.rest, "model", where);
  refuse_unsupported(model, where);
  fuse_unknown_ = json_bool(model, "fuse_unk", where, false);
  ignore_merges_ = json_bool(model, "ignore_merges", where, false);

  ids_.reserve(file.vocabulary.size());
  texts_.reserve(file.vocabulary.size());
  direct_.assign(kDirect, -1);
  for (const auto& [text, id] : file.vocabulary) {
    ids_.emplace(text, id);
    texts_.emplace(id, text);
    highest_ = std::max(highest_, id);
    if (!text.empty()) {
      const CodePoint first = decode_code_point(text, 0);
      if (first.bytes == text.size() && first.value < kDirect) direct_[first.value] = id;
    }
  }
  if (json_bool(model, "byte_fallback", where, false)) bytes_.emplace(*this);
  const std::string unknown = json_string(model, "unk_token", where, "");
  if (!unknown.empty()) {
    unknown_ = id_of(unknown);
    if (!unknown_)
      throw InputError(where + ": the unknown token '" + printable(unknown) + "' is not in the vocabulary");
  }

  std::vector<std::pair<std::uint64_t, Merge>> merges;
  merges.reserve(file.merges.size());
  for (const auto& [left, right] : file.merges) {
    const auto rank = static_cast<std::uint32_t>(merges.size());
    const auto a = id_of(left), b = id_of(right), ab = id_of(left + right);
    if (!a || !b || !ab) {
      throw InputError(where + ": merge " + std::to_string(rank) + " ('" + left + "' + '" + right + "') names '" +
                       (!a   ? left
                        : !b ? right
                             : left + right) +
                       "', which is not in the vocabulary");
    }
    merges.push_back({pair_key(*a, *b), {rank, *ab}});
  }
  merges_.build(merges);
}

std::optional<std::int32_t> Bpe::id_of(std::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

const std::string* Bpe::text_of(std::int32_t id) const {
  const auto it = texts_.find(id);
  return it == texts_.end() ? nullptr : &it->second;
}

Bpe::Session::Session(const Bpe& bpe) : bpe_(bpe), cache_lock_(bpe.cache_mutex_, std::try_to_lock) {}

void Bpe::Session::encode(std::string_view word, std::vector<std::int32_t>& ids) {
  if (word.empty()) return;
  if (bpe_.ignore_merges_) {
    if (const auto whole = bpe_.id_of(word)) {
      ids.push_back(*whole);
      return;
    }
  }
  const bool cached = cache_lock_.owns_lock() && word.size() <= kCacheWordBytes;
  if (cached) {
    const auto it = bpe_.cache_.find(word);
    if (it != bpe_.cache_.end()) {
      ids.insert(ids.end(), it->second.begin(), it->second.end());
      return;
    }
  }
  const std::size_t first = ids.size();
  split_into_symbols(word);
  merge_all();
  for (const Symbol& symbol : symbols_) {
    if (symbol.alive) ids.push_back(symbol.id);
  }
  if (cached) {
    if (bpe_.cache_.size() >= kCacheWords) bpe_.cache_.clear();
    bpe_.cache_.emplace(word, std::vector<std::int32_t>(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end()));
  }
}

void Bpe::Session::add_symbol(std::int32_t id) {
  const auto index = static_cast<std::int32_t>(symbols_.size());
  if (index > 0) symbols_.back().next = index;
  symbols_.push_back({id, index - 1, -1, true});
}

void Bpe::Session::split_into_symbols(std::string_view word) {
  if (word.size() > static_cast<std::size_t>(INT32_MAX)) {
    throw InputError("a text without any split of " + std::to_string(word.size()) +
                     " bytes is too long to encode; split it into shorter rows");
  }
  symbols_.clear();
  // An unknown character is delayed, so that adjacent ones can be fused into one unknown token.
  bool unknown_waits = false;
  for (std::size_t at = 0; at < word.size();) {
    const CodePoint c = decode_code_point(word, at);
    const std::string_view text = word.substr(at, c.bytes);
    at += c.bytes;
    const std::int32_t id = c.value < kDirect ? bpe_.direct_[c.value] : bpe_.id_of(text).value_or(-1);
    if (id >= 0) {
      if (unknown_waits) add_symbol(*bpe_.unknown_);
      unknown_waits = false;
      add_symbol(id);
      continue;
    }
    byte_ids_.clear();
    if (bpe_.bytes_ && bpe_.bytes_->append(text, byte_ids_)) {
      for (const std::int32_t byte : byte_ids_)
        add_symbol(byte);  // a delayed unknown token comes after it, as in the
                           // package
      continue;
    }
    if (bpe_.unknown_) {
      if (unknown_waits && !bpe_.fuse_unknown_) add_symbol(*bpe_.unknown_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) add_symbol(*bpe_.unknown_);
}

void Bpe::Session::push(std::int32_t left, std::int32_t right) {
  const Merge* merge =
      bpe_.merges_.find(symbols_[static_cast<std::size_t>(left)].id, symbols_[static_cast<std::size_t>(right)].id);
  if (merge == nullptr) return;
  queue_.push_back({merge->rank, static_cast<std::uint32_t>(left), merge->merged});
}

void Bpe::Session::merge_all() {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto symbol = [&](std::int32_t index) -> Symbol& { return symbols_[static_cast<std::size_t>(index)]; };
  queue_.clear();
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(symbols_.size()); ++i) push(i, i + 1);
  std::make_heap(queue_.begin(), queue_.end(), later);
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), later);
    const Candidate top = queue_.back();
    queue_.pop_back();
    const auto at = static_cast<std::int32_t>(top.position);
    if (!symbol(at).alive || symbol(at).next < 0) continue;
    const std::int32_t right = symbol(at).next;
    const Merge* merge = bpe_.merges_.find(symbol(at).id, symbol(right).id);
    if (merge == nullptr || merge->merged != top.merged) continue;  // one side has been merged already
    symbol(at).id = top.merged;
    symbol(at).next = symbol(right).next;
    symbol(right).alive = false;
    if (symbol(right).next >= 0) symbol(symbol(right).next).previous = at;
    for (const bool before : {true, false}) {
      const std::size_t size = queue_.size();
      if (before && symbol(at).previous >= 0) push(symbol(at).previous, at);
      if (!before && symbol(at).next >= 0) push(at, symbol(at).next);
      if (queue_.size() > size) std::push_heap(queue_.begin(), queue_.end(), later);
    }
  }
}

}  // namespace oscar
