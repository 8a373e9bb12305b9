#include "text/tokenizer/config_tokens.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_rules.h"

namespace oscar {
namespace {

constexpr std::array<const char*, 7> kStandard = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                  "pad_token", "cls_token", "mask_token"};
constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

bool is_standard(const std::string& key) {
  return std::find(kStandard.begin(), kStandard.end(), key) != kStandard.end();
}

Json read_object(const fs::path& file) {
  std::error_code ec;
  if (fs::symlink_status(file, ec).type() == fs::file_type::not_found) return Json::object();
  Json json = read_python_json(file, kMostBytes);
  if (!json.is_object()) throw InputError(file.string() + ": found " + json.type_name() + ", expected a JSON object");
  return json;
}

Json plain_token(const std::string& content, bool special) {
  return {{"content", content}, {"single_word", false},   {"lstrip", false},
          {"rstrip", false},    {"normalized", !special}, {"special", special}};
}

// {"content": ..., flags}. Absent flags have the defaults of the package tokenizers.
Json config_token(const Json& entry, bool special, const std::string& where) {
  special = json_bool(entry, "special", where, special);
  Json token = plain_token(json_string(entry, "content", where), special);
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
    token[flag] = json_bool(entry, flag, where, token[flag].get<bool>());
  }
  return token;
}

// A token as in these files: a text, or an object.
struct Written {
  std::string content;
  std::optional<Json> flags;  // if it is an object
};

Written written(const Json& value, const std::string& key, const std::string& where) {
  if (value.is_string()) return {value.get<std::string>(), std::nullopt};
  if (!value.is_object()) {
    throw InputError(where + ": '" + key + "' is " + value.type_name() +
                     ", expected a text or an object with 'content'");
  }
  Json token = config_token(value, true, where + ": '" + key + "'");
  return {token["content"].get<std::string>(), std::move(token)};
}

std::int64_t token_index(const std::string& text, const std::string& where) {
  std::int64_t index = -1;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), index);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || index < 0) {
    throw InputError(where + ": 'added_tokens_decoder' has the key " + quote_name(text) + ", expected a token's id");
  }
  return index;
}

using Tokens = std::optional<std::vector<Written>>;

bool holds(const Tokens& tokens, const std::string& content) {
  return tokens && std::any_of(tokens->begin(), tokens->end(), [&](const Written& t) { return t.content == content; });
}

class TokenFiles {
 public:
  explicit TokenFiles(const fs::path& directory)
      : directory_(directory),
        where_((directory / "tokenizer_config.json").string()),
        config_(read_object(directory / "tokenizer_config.json")) {}

  ConfigTokens read(const Json& own) {
    if (json_bool(config_, "split_special_tokens", where_, false)) {
      throw InputError(where_ +
                       ": 'split_special_tokens' is true, which is not supported; pass {\"input_ids\": [...]} rows");
    }
    out_.prefix_space = json_member(config_, "add_prefix_space") == true;
    read_names(config_, where_, false);
    const Json& decoder = json_member(config_, "added_tokens_decoder");
    if (!decoder.is_null()) {
      if (!decoder.is_object()) {
        throw InputError(where_ + ": 'added_tokens_decoder' is " + decoder.type_name() + ", expected an object");
      }
      for (const auto& [index, entry] : decoder.items()) {
        by_index_[token_index(index, where_)] = config_token(entry, false, where_ + ": 'added_tokens_decoder'");
      }
    } else {
      read_older_files();
      for (const Json& entry : own.is_array() ? own : Json::array()) {
        if (!entry.is_object() || !json_member(entry, "id").is_number_integer())
          continue;  // its reader reports the
                     // reason
        by_index_[entry["id"].get<std::int64_t>()] = config_token(entry, false, "added_tokens");
      }
    }
    collect(own);
    return std::move(out_);
  }

 private:
  // special_tokens_map.json and added_tokens.json, which older versions wrote instead of added_tokens_decoder.
  void read_older_files() {
    const fs::path map_file = directory_ / "special_tokens_map.json", added_file = directory_ / "added_tokens.json";
    read_names(read_object(map_file), map_file.string(), true);
    const Json added = read_object(added_file);
    for (const auto& item : added.items()) {
      const std::string content = item.key();  // not a structured binding, because lambdas below capture it
      const Json& index = item.value();
      if (!index.is_number_unsigned()) {
        throw InputError(added_file.string() + ": the id of " + quote_name(content) + " is " +
                         index.dump().substr(0, 40) + ", expected a whole number");
      }
      const bool special =
          std::any_of(named_.begin(), named_.end(),
                      [&](const auto& n) { return is_standard(n.first) && n.second.content == content; }) ||
          holds(extra_, content);
      by_index_[index.get<std::int64_t>()] = plain_token(content, special);
    }
  }

  void name(const std::string& key, const Json& value, const std::string& where) {
    if (value.is_null()) return;
    Written token = written(value, key, where);
    const auto known = std::find_if(named_.begin(), named_.end(), [&](const auto& n) { return n.first == key; });
    if (known == named_.end()) {
      named_.emplace_back(key, std::move(token));
    } else {
      known->second = std::move(token);
    }
  }

  // Named tokens of one model, such as image_token, as transformers 5 saves them.
  void read_model_specific(const Json& object, const std::string& where) {
    const Json& named = json_member(object, "model_specific_special_tokens");
    if (named.is_null()) return;
    if (!named.is_object()) {
      throw InputError(where + ": 'model_specific_special_tokens' is " + named.type_name() + ", expected an object");
    }
    for (const auto& [key, value] : named.items()) name(key, value, where);
  }

  // Tokens by name, and lists of further ones. merges: for the second file, special_tokens_map.json.
  void read_names(const Json& object, const std::string& where, bool merges) {
    for (const char* key : kStandard) name(key, json_member(object, key), where);
    for (const auto& [key, value] : object.items()) {
      if (!key.ends_with("_token") || is_standard(key)) continue;
      // In tokenizer_config.json transformers takes only objects that say what they are.
      if (value.is_string() || (value.is_object() && (merges || json_member(value, "__type") == "AddedToken"))) {
        name(key, value, where);
      }
    }
    const auto further = [](const auto& entry) { return !is_standard(entry.first); };
    // As transformers 5: beside "image_token" and similar, or other tokens by name, it ignores this object.
    const bool others =
        std::any_of(named_.begin(), named_.end(), further) || json_member(object, "extra_special_tokens").is_object();
    if (!merges && !others) read_model_specific(object, where);
    read_list(object, "additional_special_tokens", where, additional_);
    const Json& extra = json_member(object, "extra_special_tokens");
    if (!merges && extra.empty() && additional_) {
      extra_ = std::exchange(additional_, std::nullopt);
    } else if (extra.is_object()) {
      for (const auto& [key, value] : extra.items()) name(key, value, where);
      extra_ = std::nullopt;
    } else {
      read_list(object, "extra_special_tokens", where, extra_);
    }
  }

  // Further tokens. Those of a second file are appended to "extra_special_tokens", and replace
  // "additional_special_tokens".
  void read_list(const Json& object, const char* key, const std::string& where, Tokens& tokens) {
    if (!object.contains(key)) return;
    const Json& list = object[key];
    if (!list.is_array() && !list.is_null()) {
      throw InputError(where + ": the list of special tokens is " + list.type_name() + ", expected an array or object");
    }
    if (!tokens || &tokens == &additional_) tokens.emplace();
    for (const Json& value : list.is_array() ? list : Json::array()) {
      Written token = written(value, key, where);
      if (!holds(tokens, token.content)) tokens->push_back(std::move(token));
    }
  }

  void collect(const Json& own) {
    std::vector<std::string> known;  // already added tokens
    for (const Json& entry : own.is_array() ? own : Json::array()) {
      const Json& content = json_member(entry, "content");
      if (content.is_string()) known.push_back(content.get<std::string>());
    }
    const auto is_named = [&](const std::string& content) {
      return std::any_of(named_.begin(), named_.end(), [&](const auto& n) { return n.second.content == content; });
    };
    for (auto& [index, token] : by_index_) {
      const auto content = token["content"].get<std::string>();
      if (is_named(content)) token["special"] = true;
      known.push_back(content);
      out_.added.push_back(token);
    }
    std::sort(known.begin(), known.end());
    const auto add = [&](const Written& token) {
      if (std::binary_search(known.begin(), known.end(), token.content)) return;
      known.insert(std::lower_bound(known.begin(), known.end(), token.content), token.content);
      out_.added.push_back(token.flags ? *token.flags : plain_token(token.content, true));
    };
    for (const auto& [key, token] : named_) add(token);
    for (const Written& token : (extra_ ? extra_ : additional_).value_or(std::vector<Written>())) add(token);
    for (const auto& [key, token] : named_) out_.named.emplace_back(key, token.content);
  }

  const fs::path directory_;
  const std::string where_;
  const Json config_;
  std::vector<std::pair<std::string, Written>> named_;  // standard ones first
  // The two lists, if there is one. Without the first, transformers reads the second when all files are read.
  Tokens extra_, additional_;
  std::map<std::int64_t, Json> by_index_;
  ConfigTokens out_;
};

}  // namespace

ConfigTokens read_config_tokens(const fs::path& directory, const Json& own) { return TokenFiles(directory).read(own); }

}  // namespace oscar
