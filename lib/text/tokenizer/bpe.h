// Byte pair encoding of one pre-token: characters to symbols, then merges by rank (Sennrich et al. 2016). Follows
// Hugging Face tokenizers, with byte fallback, unknown tokens and ignore_merges.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/token_model.h"

namespace oscar {

class Bpe : public TokenModel {
 public:
  Bpe(const TokenizerJson& file, const std::string& where);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  // Appends the ids of each word. A bounded cache holds earlier words; only one thread at a time uses it.
  class Session : public TokenModel::Session {
   public:
    explicit Session(const Bpe& bpe);
    void encode(std::string_view word, std::vector<std::int32_t>& ids) override;

   private:
    struct Candidate {
      std::uint32_t rank, position;
      std::int32_t merged;
    };
    struct Symbol {
      std::int32_t id;
      std::int32_t previous, next;
      bool alive;
    };
    void split_into_symbols(std::string_view word);
    void add_symbol(std::int32_t id);
    void push(std::int32_t left, std::int32_t right);
    void merge_all();

    const Bpe& bpe_;
    std::unique_lock<std::mutex> cache_lock_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> queue_;  // a binary heap: smallest rank first, then smallest position
    std::vector<std::int32_t> byte_ids_;
  };

  std::unique_ptr<TokenModel::Session> start() const override { return std::make_unique<Session>(*this); }
  std::optional<std::int32_t> id_of(std::string_view token) const override;
  const std::string* text_of(std::int32_t id) const override;
  std::size_t size() const override { return ids_.size(); }
  std::int32_t highest_id() const override { return highest_; }

 private:
  struct Merge {
    std::uint32_t rank;
    std::int32_t merged;
  };
  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  // Open addressing on the pair of ids. This is the tokenizer's most frequent lookup.
  class MergeTable {
   public:
    void build(const std::vector<std::pair<std::uint64_t, Merge>>& merges);
    const Merge* find(std::int32_t left, std::int32_t right) const;

   private:
    std::vector<std::uint64_t> keys_;
    std::vector<Merge> values_;
    std::size_t mask_ = 0;
  };
  using StringMap = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;
  using WordCache = std::unordered_map<std::string, std::vector<std::int32_t>, StringHash, std::equal_to<>>;

  StringMap ids_;
  std::unordered_map<std::int32_t, std::string> texts_;
  MergeTable merges_;
  std::vector<std::int32_t> direct_;  // id of each one-character token below U+0800, or -1
  std::optional<ByteTokens> bytes_;   // with byte_fallback
  std::optional<std::int32_t> unknown_;
  bool fuse_unknown_ = false, ignore_merges_ = false;
  std::int32_t highest_ = 0;
  mutable std::mutex cache_mutex_;
  mutable WordCache cache_;
};

}  // namespace oscar
