#include "base/json.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/utf8.h"

namespace oscar {
namespace {

// A parser callback that refuses duplicate keys and excessive depth while the text is read.
class StrictReader {
 public:
  StrictReader(std::string where, int max_depth) : where_(std::move(where)), max_depth_(max_depth) {}

  bool operator()(int depth, nlohmann::detail::parse_event_t event, Json& parsed) {
    using Event = nlohmann::detail::parse_event_t;
    if (depth > max_depth_) {
      throw InputError(where_ + ": JSON is nested deeper than " + std::to_string(max_depth_) + " levels");
    }
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end && !keys_.empty()) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(parsed.get<std::string>()).second) {
      throw InputError(where_ + ": JSON object has the key " + quote_name(parsed.get<std::string>()) + " twice");
    }
    return true;
  }

 private:
  std::string where_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;
};

// The depth is checked before parsing too: the parser itself recurses for neither arrays nor objects, but the
// destructor of a very deep value would.
void check_depth(std::string_view text, const std::string& where, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_depth) {
        throw InputError(where + ": JSON is nested deeper than " + std::to_string(max_depth) + " levels");
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

const Json* find(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) throw InputError(where + ": found " + object.type_name() + ", expected a JSON object");
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

const Json& need(const Json& object, const char* key, const std::string& where) {
  const Json* value = find(object, key, where);
  if (value == nullptr) throw InputError(where + ": the key '" + key + "' is missing");
  return *value;
}

[[noreturn]] void wrong_type(const Json& value, const char* key, const std::string& where, const char* expected) {
  throw InputError(where + ": '" + key + "' is " + value.type_name() + ", expected " + expected);
}

std::int64_t as_int(const Json& value, const char* key, const std::string& where) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    throw InputError(where + ": '" + key + "' is too large");
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {  // 1e6 written as a float is common in config.json
    const double number = value.get<double>();
    if (number >= -9e15 && number <= 9e15 && number == static_cast<double>(static_cast<std::int64_t>(number))) {
      return static_cast<std::int64_t>(number);
    }
  }
  wrong_type(value, key, where, "an integer");
}

double as_number(const Json& value, const char* key, const std::string& where) {
  if (!value.is_number()) wrong_type(value, key, where, "a number");
  return value.get<double>();
}

std::string as_string(const Json& value, const char* key, const std::string& where) {
  if (!value.is_string()) wrong_type(value, key, where, "a string");
  return value.get<std::string>();
}

// JSON text in UTF-8 with unsafe characters, which stand inside its strings alone, as \uXXXX (a pair above U+FFFF). C0
// was escaped by the writer.
std::string escape_json(std::string text) {
  const auto plain = [](char c) { return c >= 0 && c < 0x7F; };
  if (std::all_of(text.begin(), text.end(), plain)) return text;
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (plain(text[at]) || !is_unsafe(step.value)) {
      out.append(text, at, step.bytes);
    } else {
      const auto c = static_cast<unsigned>(step.value);
      char units[16];
      if (c < 0x10000) {
        std::snprintf(units, sizeof units, "\\u%04x", c);
      } else {
        std::snprintf(units, sizeof units, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + (c & 0x3FF));
      }
      out += units;
    }
    at += step.bytes;
  }
  return out;
}

// A copy whose strings and keys are UTF-8.
Json with_utf8_text(const Json& value) {
  if (value.is_string()) return utf8_text(value.get<std::string>());
  if (!value.is_structured()) return value;
  Json out = value.is_object() ? Json::object() : Json::array();
  for (const auto& [key, item] : value.items()) {
    if (value.is_object()) {
      out[utf8_text(key)] = with_utf8_text(item);
    } else {
      out.push_back(with_utf8_text(item));
    }
  }
  return out;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, int max_depth) {
  check_depth(text, where, max_depth);
  try {
    return Json::parse(text.begin(), text.end(), StrictReader(where, max_depth));
  } catch (const nlohmann::json::exception& e) {
    // The parser repeats the token it stopped at, which may be as long as the file.
    constexpr std::size_t kShown = 200;
    const std::string why = e.what();
    throw InputError(where + ": is not valid JSON (" + (why.size() > kShown ? why.substr(0, kShown) + "..." : why) +
                     ")");
  }
}

Json read_json(const fs::path& path, std::uint64_t max_bytes) {
  return parse_json(read_file(path, max_bytes), path.string());
}

std::int64_t json_int(const Json& object, const char* key, const std::string& where) {
  return as_int(need(object, key, where), key, where);
}
std::int64_t json_int(const Json& object, const char* key, const std::string& where, std::int64_t fallback) {
  const Json* value = find(object, key, where);
  return value == nullptr ? fallback : as_int(*value, key, where);
}
double json_number(const Json& object, const char* key, const std::string& where) {
  return as_number(need(object, key, where), key, where);
}
double json_number(const Json& object, const char* key, const std::string& where, double fallback) {
  const Json* value = find(object, key, where);
  return value == nullptr ? fallback : as_number(*value, key, where);
}
bool json_bool(const Json& object, const char* key, const std::string& where, bool fallback) {
  const Json* value = find(object, key, where);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) wrong_type(*value, key, where, "true or false");
  return value->get<bool>();
}
std::string json_string(const Json& object, const char* key, const std::string& where) {
  return as_string(need(object, key, where), key, where);
}
std::string json_string(const Json& object, const char* key, const std::string& where, const std::string& fallback) {
  const Json* value = find(object, key, where);
  return value == nullptr ? fallback : as_string(*value, key, where);
}
const Json& json_object(const Json& object, const char* key, const std::string& where) {
  const Json& value = need(object, key, where);
  if (!value.is_object()) wrong_type(value, key, where, "an object");
  return value;
}
const Json& json_array(const Json& object, const char* key, const std::string& where) {
  const Json& value = need(object, key, where);
  if (!value.is_array()) wrong_type(value, key, where, "an array");
  return value;
}

std::string dump_json(const Json& value) {
  try {
    return escape_json(value.dump(2)) + "\n";
  } catch (const nlohmann::json::exception&) {
    return escape_json(with_utf8_text(value).dump(2)) + "\n";
  }
}

}  // namespace oscar
