#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "base/log.h"
#include "text/tokenizer/components.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

// Every position of a text is compared with the tokens, so long tokens cost time. Known tokens have about 40 bytes.
constexpr std::size_t kLongestToken = 512;

// `id` from the file; -1 if it has none.
AddedToken read_token(const Json& entry, bool has_id, const std::string& where) {
  AddedToken token;
  token.content = json_string(entry, "content", where);
  const std::int64_t id = has_id ? json_int(entry, "id", where) : -1;
  if (has_id && (id < 0 || id >= std::numeric_limits<std::int32_t>::max())) {
    throw InputError(where + ": the added token '" + printable(token.content) + "' has the id " + std::to_string(id) +
                     ", expected 0 to 2147483646");
  }
  token.id = static_cast<std::int32_t>(id);
  token.single_word = need_bool(entry, "single_word", where);
  token.lstrip = need_bool(entry, "lstrip", where);
  token.rstrip = need_bool(entry, "rstrip", where);
  token.normalized = need_bool(entry, "normalized", where);
  token.special = need_bool(entry, "special", where);
  if (token.content.size() > kLongestToken) {
    throw InputError(where + ": the added token '" + printable(token.content) + "' has " +
                     std::to_string(token.content.size()) + " bytes, supported are " + std::to_string(kLongestToken));
  }
  return token;
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word(decode_code_point_before(text, text.size()).value);
}
bool starts_with_word(std::string_view text) { return !text.empty() && is_word(decode_code_point(text, 0).value); }

}  // namespace

// The token's id is the vocabulary's, or the next free one. Warns if the file's id differs.
void AddedTokens::add(AddedToken token, const TokenModel& model, const std::string& where) {
  if (token.content.empty()) return;
  if (token.special) special_.insert(token.content);
  const std::int32_t said = token.id;
  if (const auto known = by_content_.find(token.content); known != by_content_.end()) {
    token.id = known->second;
    tokens_[by_id_.at(token.id)] = std::move(token);
    return;
  }
  const auto size = static_cast<std::int32_t>(model.size());
  token.id = model.id_of(token.content).value_or(std::max(size, highest_ + 1));
  if (said >= 0 && said != token.id && !warned_) {
    log_warning(where + ": the added token '" + printable(token.content) + "' has the id " + std::to_string(said) +
                " there, and gets " + std::to_string(token.id) +
                ", which the vocabulary gives it or is the next free one, as transformers gives it");
    warned_ = true;
  }
  by_id_.emplace(token.id, tokens_.size());
  by_content_.emplace(token.content, token.id);
  highest_ = std::max(highest_, token.id);
  tokens_.push_back(std::move(token));
}

AddedTokens::AddedTokens(const Json& file, const Json& more, const TokenModel& model, const Normalizer* normalizer,
                         const std::string& where) {
  const Json& list = json_member(file, "added_tokens");
  if (!list.is_null() && !list.is_array()) throw InputError(where + ": 'added_tokens' is not an array");
  for (const Json& entry : list) add(read_token(entry, true, where + " added_tokens"), model, where);
  for (const Json& entry : more) add(read_token(entry, false, where), model, where);
  // For equal (normalized) texts, special tokens come first.
  for (const bool special : {true, false}) {
    for (AddedToken& token : tokens_) {
      if (token.special != special) continue;
      token.shown = token.content;
      if (token.normalized && normalizer != nullptr) normalizer->apply(token.shown);
      matchers_[token.normalized].add(token.shown, token.id);
    }
  }
}

std::vector<Segment> AddedTokens::split(std::string_view text, bool normalized) const {
  std::vector<Segment> segments;
  const StringMatcher& matcher = matchers_[normalized];
  std::size_t covered = 0;
  for (std::size_t at = 0; !matcher.empty() && at < text.size();) {
    const auto hit = matcher.match(text, at);
    if (!hit) {
      ++at;
      continue;
    }
    const AddedToken& token = *find(hit->value);
    std::size_t begin = at, end = at + hit->length;
    at = end;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) continue;
    if (token.lstrip) {
      while (begin > covered) {
        const CodePoint c = decode_code_point_before(text, begin);
        if (!is_whitespace(c.value)) break;
        begin -= c.bytes;
      }
    }
    if (token.rstrip) {
      while (end < text.size()) {
        const CodePoint c = decode_code_point(text, end);
        if (!is_whitespace(c.value)) break;
        end += c.bytes;
      }
    }
    if (covered < begin) segments.push_back({covered, begin, -1});
    segments.push_back({begin, end, token.id});
    covered = end;
  }
  if (covered < text.size()) segments.push_back({covered, text.size(), -1});
  return segments;
}

const AddedToken* AddedTokens::find(std::int32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

std::optional<std::int32_t> AddedTokens::id_of(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace oscar
