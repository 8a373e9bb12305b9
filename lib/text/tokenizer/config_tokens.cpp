#include "text/tokenizer/config_tokens.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_rules.h"
#include "text/row_json.h"

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

// Python's AddedToken, which special_tokens_map.json makes of objects at once, and tokenizer_config.json of typed ones.
constexpr const char *kType = "__type", *kMade = "__made", *kAdded = "AddedToken";

bool is_added_token(const Json& value) { return json_member(value, kType) == kAdded; }

Json made_token(Json value) {
  value["special"] = true;
  value[kType] = kAdded;
  value[kMade] = true;
  return value;
}

// The token's text where Python's str() gives it: not for an object that is not made into a token yet.
Json text_of(const Json& value) { return json_member(value, kMade).is_null() ? value : json_member(value, "content"); }

// A token as in these files: a text, or an object.
struct Written {
  std::string content;
  std::optional<Json> flags;  // if it is an object

  bool operator==(const Written&) const = default;
};

Written written(const Json& value, const std::string& key, const std::string& where) {
  if (value.is_string()) return {value.get<std::string>(), std::nullopt};
  if (!value.is_object()) {
    throw InputError(where + ": '" + key + "' is " + value.type_name() +
                     ", expected a text or an object with 'content'");
  }
  Json token = config_token(value, false, where + ": '" + key + "'");
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

constexpr const char *kExtra = "extra_special_tokens", *kAdditional = "additional_special_tokens",
                     *kModel = "model_specific_special_tokens";

// Python's truth of a value, and dict.pop() and dict.update().
bool is_true(const Json& value) {
  return !value.is_null() && value != Json(false) && value != Json(0) && value != Json("") &&
         !(value.is_structured() && value.empty());
}

Json pop(Json& object, const std::string& key) {
  Json value = object[key];
  object.erase(key);
  return value;
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
    name_further();
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
        if (!json_member(entry, "id").is_number_integer()) continue;  // its reader reports the reason
        by_index_[entry["id"].get<std::int64_t>()] = config_token(entry, false, "added_tokens");
      }
    }
    collect(own);
    return std::move(out_);
  }

 private:
  // Of tokenizer_config.json. Tokens of one model by name, such as image_token, replace those saved as such.
  void name_further() {
    if (config_.contains(kAdditional) && !is_true(json_member(config_, kExtra))) {
      config_[kExtra] = pop(config_, kAdditional);
    }
    Json further = Json::object(), others = Json::object();
    for (const auto& [key, value] : config_.items()) {
      (key.ends_with("_token") && !is_standard(key) && value.is_string() ? further : others)[key] = value;
    }
    config_ = std::move(others);
    if (json_member(config_, kExtra).is_object()) further.update(pop(config_, kExtra));
    if (!further.empty()) config_[kModel] = std::move(further);
  }

  // special_tokens_map.json and added_tokens.json, which older versions wrote instead of added_tokens_decoder.
  void read_older_files() {
    const fs::path map_file = directory_ / "special_tokens_map.json", added_file = directory_ / "added_tokens.json";
    const Json map = read_object(map_file), added = read_object(added_file);
    for (const auto& [key, value] : map.items()) {
      Json merged = value.is_object() && key != kExtra ? made_token(value) : value;
      if (key == kExtra && value.is_array()) {
        merged = is_true(json_member(config_, kExtra)) ? config_[kExtra] : Json::array();
        for (const Json& token : value) merged.push_back(token.is_object() ? made_token(token) : token);
      }
      config_[key] = std::move(merged);
    }
    if (json_member(config_, kExtra).is_object()) {
      const Json extra = pop(config_, kExtra);
      if (!json_member(config_, kModel).is_object()) config_[kModel] = Json::object();
      config_[kModel].update(extra);
    }
    std::vector<Json> special;
    for (const char* key : kStandard) special.push_back(text_of(json_member(config_, key)));
    const Json& extra = json_member(config_, kExtra);
    for (const Json& token : extra.is_array() ? extra : Json::array()) special.push_back(text_of(token));
    for (const auto& [content, index] : added.items()) {
      if (!index.is_number_unsigned()) {
        throw InputError(added_file.string() + ": the id of " + quote_name(content) + " is " +
                         index.dump().substr(0, 40) + ", expected a whole number");
      }
      by_index_[index.get<std::int64_t>()] =
          plain_token(content, std::find(special.begin(), special.end(), Json(content)) != special.end());
    }
  }

  void name(const std::string& key, const Json& value) {
    if (value.is_null()) return;
    Written token = written(value, key, where_);
    const auto known = std::find_if(named_.begin(), named_.end(), [&](const auto& n) { return n.first == key; });
    if (known == named_.end()) {
      named_.emplace_back(key, std::move(token));
    } else {
      known->second = std::move(token);
    }
  }

  void name_all(const Json& object, const char* key) {
    if (!object.is_object()) {
      throw InputError(where_ + ": '" + key + "' is " + object.type_name() + ", expected an object");
    }
    for (const auto& [name_of, value] : object.items()) name(name_of, value);
  }

  // Tokens by name, in transformers' order, and the list of further ones.
  void read_names() {
    if (config_.contains(kAdditional) && !config_.contains(kExtra)) config_[kExtra] = pop(config_, kAdditional);
    for (const char* key : kStandard) name(key, json_member(config_, key));
    const Json& extra = json_member(config_, kExtra);
    if (extra.is_object()) name_all(extra, kExtra);
    for (const auto& [key, value] : config_.items()) {
      const bool token = value.is_string() || is_added_token(value);
      if (token && key.ends_with("_token") && !is_standard(key)) name(key, value);
    }
    if (has_value(config_, kModel)) name_all(config_[kModel], kModel);
    std::stable_sort(named_.begin(), named_.end(), [](const auto& a, const auto& b) {
      return std::find(kStandard.begin(), kStandard.end(), a.first) <
             std::find(kStandard.begin(), kStandard.end(), b.first);
    });
    if (extra.is_null() || extra.is_object()) return;
    if (!extra.is_array()) {
      throw InputError(where_ + ": the list of special tokens is " + extra.type_name() +
                       ", expected an array or object");
    }
    for (const Json& value : extra) extra_.push_back(written(value, kExtra, where_));
  }

  void collect(const Json& own) {
    read_names();
    std::vector<std::string> known;  // already added tokens
    for (const Json& entry : own.is_array() ? own : Json::array()) {
      const Json& content = json_member(entry, "content");
      if (content.is_string()) known.push_back(content.get<std::string>());
    }
    std::vector<Written> tokens;
    for (const auto& [index, token] : by_index_) {
      tokens.push_back({token["content"].get<std::string>(), token});
      known.push_back(tokens.back().content);
    }
    const auto add = [&](const Written& token) {
      const auto has = [&](const auto& list, const auto& one) {
        return std::find(list.begin(), list.end(), one) != list.end();
      };
      if (!has(known, token.content) && !has(tokens, token)) tokens.push_back(token);
    };
    for (const auto& [key, token] : named_) add(token);
    for (const Written& token : extra_) add(token);
    for (const Written& token : tokens) {
      Json made = token.flags.value_or(plain_token(token.content, true));
      if (std::any_of(named_.begin(), named_.end(), [&](const auto& n) { return n.second.content == token.content; })) {
        made["special"] = true;
      }
      out_.added.push_back(std::move(made));
    }
    for (const auto& [key, token] : named_) out_.named.emplace_back(key, token.content);
  }

  const fs::path directory_;
  const std::string where_;
  Json config_;                                         // of all files
  std::vector<std::pair<std::string, Written>> named_;  // standard ones first
  std::vector<Written> extra_;
  std::map<std::int64_t, Json> by_index_;
  ConfigTokens out_;
};

}  // namespace

ConfigTokens read_config_tokens(const fs::path& directory, const Json& own) { return TokenFiles(directory).read(own); }

}  // namespace oscar
