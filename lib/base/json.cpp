#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/budget.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/formatted.h"
#include "base/json_rules.h"
#include "base/utf8.h"

namespace oscar {
namespace {

// Builds a value from the parser's events. For every key, nlohmann's own builder searches all members read so far,
// which takes minutes for an object with 100,000 keys. This builder appends members and uses a set of keys for large
// objects.
class Builder {
 public:
  Builder(std::string_view text, const std::string& where, int max_depth, JsonRules rules)
      : text_(text), where_(where), max_depth_(static_cast<std::size_t>(max_depth)), rules_(rules) {}
  Json take() { return std::move(root_); }

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(std::int64_t value) { return scalar(value); }
  bool number_unsigned(std::uint64_t value) { return scalar(value); }
  bool number_float(double value, const std::string&) { return scalar(value); }
  bool string(std::string& value) {
    charge(value.size());
    if (rules_ == JsonRules::kPython && value.starts_with(kNumberMark)) return scalar(named_number(value));
    return scalar(std::move(value));
  }
  bool binary(Json::binary_t&) { return false; }  // JSON text never contains any

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool key(std::string& name) {
    charge(name.size());
    Level& level = levels_.back();
    auto& members = level.container->get_ref<Json::object_t&>();
    level.repeated = nullptr;
    if (repeats(level, name)) {
      if (rules_ == JsonRules::kStrict) {
        throw InputError(where_ + ": JSON object has the key " + quote_name(name) + " twice");
      }
      Budget::spend(members.size());
      level.repeated =
          &std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.first == name; })->second;
      return true;
    }
    members.emplace_back(std::move(name), nullptr);
    return true;
  }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t bytes_read, const std::string&, const nlohmann::detail::exception& e) {
    throw InputError(where_ + ": " + json_fault(text_, bytes_read, e.what()));
  }

 private:
  struct Level {
    Json* container;
    std::unordered_set<std::string> keys;  // for an object with more than kFewKeys
    Json* repeated = nullptr;              // the member that the next value replaces, if its key already existed
  };
  static constexpr std::size_t kFewKeys = 16;
  static constexpr std::uint64_t kValueSteps = 100;

  static void charge(std::size_t bytes) {
    Budget::spend(kValueSteps + bytes);
    Budget::hold(sizeof(Json) + bytes);
  }

  static bool repeats(Level& level, const std::string& name) {
    const auto& members = level.container->get_ref<const Json::object_t&>();
    if (members.size() < kFewKeys) {
      return std::any_of(members.begin(), members.end(), [&](const auto& member) { return member.first == name; });
    }
    if (members.size() == kFewKeys) {
      for (const auto& member : members) level.keys.insert(member.first);
    }
    Budget::hold(name.size() + 64);
    return !level.keys.insert(name).second;
  }

  static Json named_number(const std::string& text) {
    const std::string_view name = std::string_view(text).substr(kNumberMark.size());
    const double infinity = std::numeric_limits<double>::infinity();
    if (name == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (name == "Infinity") return infinity;
    return name == "-Infinity" ? Json(-infinity) : Json(text);
  }

  // Each open container is the last member of the one before it, so these pointers stay valid.
  Json* place(Json value) {
    charge(0);
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& container = *levels_.back().container;
    if (Json* repeated = std::exchange(levels_.back().repeated, nullptr)) {
      *repeated = std::move(value);
      return repeated;
    }
    if (container.is_array()) {
      container.push_back(std::move(value));
      return &container.back();
    }
    Json& member = container.get_ref<Json::object_t&>().back().second;
    member = std::move(value);
    return &member;
  }
  bool scalar(Json value) {
    place(std::move(value));
    return true;
  }
  // The destruction of a deeper value would exhaust the stack.
  bool open(Json value) {
    if (levels_.size() == max_depth_) {
      throw InputError(where_ + ": JSON is nested deeper than " + std::to_string(max_depth_) + " levels");
    }
    Json* placed = place(std::move(value));
    levels_.push_back({.container = placed, .keys = {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  const std::string_view text_;
  const std::string& where_;
  const std::size_t max_depth_;
  const JsonRules rules_;
  Json root_;
  std::vector<Level> levels_;
};

// About 20 million values. A larger file is not a configuration, manifest or record.
constexpr Budget::Limits kJsonLimits{2'000'000'000, std::uint64_t{1} << 30};

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
  const auto number = value.get<double>();
  if (!std::isfinite(number)) {  // Python's json reads such numbers (json_rules.h)
    throw InputError(where + ": '" + key + "' is " + (std::isnan(number) ? "NaN" : "infinite") +
                     ", expected a finite number");
  }
  return number;
}

std::string as_string(const Json& value, const char* key, const std::string& where) {
  if (!value.is_string()) wrong_type(value, key, where, "a string");
  return value.get<std::string>();
}

// JSON text in UTF-8, with unsafe characters as \uXXXX (a pair above U+FFFF). These occur only inside strings. The
// writer already escaped C0.
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
      out += c < 0x10000 ? formatted("\\u%04x", c)
                         : formatted("\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + (c & 0x3FF));
    }
    at += step.bytes;
  }
  return out;
}

// A copy with all strings and keys in UTF-8.
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

Json parse_json_by(JsonRules rules, std::string_view text, const std::string& where, int max_depth) {
  const Budget budget(where + ": reading this JSON", kJsonLimits);
  Builder builder(text, where, max_depth, rules);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

Json parse_json(std::string_view text, const std::string& where, int max_depth) {
  return parse_json_by(JsonRules::kStrict, text, where, max_depth);
}

Json read_json(const fs::path& path, std::uint64_t max_bytes) {
  return parse_json(read_file(path, max_bytes), path.string());
}

bool is_one_of(std::string_view key, std::string_view keys) {
  return key.find(' ') == std::string_view::npos && keys.find(" " + std::string(key) + " ") != std::string_view::npos;
}

const Json& json_member(const Json& object, std::string_view key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
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

std::int64_t json_int_within(const Json& object, const char* key, const std::string& where, std::int64_t low,
                             std::int64_t high) {
  const std::int64_t value = json_int(object, key, where);
  if (value < low || value > high) {
    throw InputError(where + ": '" + key + "' is " + std::to_string(value) + ", expected " + std::to_string(low) +
                     " to " + std::to_string(high));
  }
  return value;
}

double require_positive(double value, const char* key, const std::string& where) {
  if (!std::isfinite(value) || value <= 0.0) {
    throw InputError(where + ": '" + key + "' is " + std::to_string(value) + ", expected a positive number");
  }
  return value;
}

}  // namespace oscar
