// Strings and slices with Python's meaning.
#include <algorithm>
#include <limits>

#include "text/jinja/builtins.h"
#include "text/unicode.h"

namespace oscar::jinja {
namespace {

bool is_python_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

std::vector<std::size_t> boundaries(std::string_view text) {
  if (text.size() > kMaxText / 4) throw TemplateError("a slice of a text beyond 16 MiB is not supported");
  std::vector<std::size_t> at{0};
  while (at.back() < text.size()) at.push_back(at.back() + decode_code_point(text, at.back()).bytes);
  return at;
}

// The indices that Python's slice gives for a sequence of `size` items.
std::vector<std::size_t> slice_indices(std::int64_t size, const Value& start, const Value& stop, const Value& step) {
  const auto number = [](const Value& value, std::int64_t fallback) {
    if (value.is_undefined() || value.is_none()) return fallback;
    if (!value.is_integral()) throw TemplateError("a slice needs integers, found " + value.type_name());
    return value.integer();
  };
  const std::int64_t stride = number(step, 1);
  if (stride == 0) throw TemplateError("a slice has the step 0");
  const std::int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto clamp = [&](const Value& value, std::int64_t fallback) {
    if (value.is_undefined() || value.is_none()) return fallback;
    std::int64_t at = number(value, 0);
    if (at < 0) at = std::max(at, -size - 1) + size;
    return std::clamp(at, low, high);
  };
  const std::int64_t first = clamp(start, stride > 0 ? low : high), last = clamp(stop, stride > 0 ? high : low);
  std::vector<std::size_t> indices;
  const std::int64_t bounded = std::clamp<std::int64_t>(stride, -size - 1, size + 1);
  for (std::int64_t i = first; bounded > 0 ? i < last : i > last; i += bounded) {
    indices.push_back(static_cast<std::size_t>(i));
  }
  return indices;
}

std::string ascii_only(const std::string& text, const char* what) {
  if (!is_ascii(text)) throw TemplateError(std::string(what) + " of text beyond ASCII is not supported");
  return text;
}

}  // namespace

void check_text_size(std::size_t bytes) {
  if (bytes > kMaxText) throw TemplateError("a text grows beyond 64 MiB");
}

std::string strip(std::string_view text, const Value& characters, bool left, bool right) {
  std::vector<char32_t> set;
  const bool spaces = characters.is_undefined() || characters.is_none();
  if (!spaces) {
    if (!characters.is_string()) throw TemplateError("strip needs a string, found " + characters.type_name());
    for (std::size_t at = 0; at < characters.string().size();) {
      const CodePoint c = decode_code_point(characters.string(), at);
      set.push_back(c.value);
      at += c.bytes;
    }
  }
  const auto drop = [&](char32_t c) {
    return spaces ? is_python_space(c) : std::find(set.begin(), set.end(), c) != set.end();
  };
  while (left && !text.empty()) {
    const CodePoint c = decode_code_point(text, 0);
    if (!drop(c.value)) break;
    text.remove_prefix(c.bytes);
  }
  while (right && !text.empty()) {
    const CodePoint c = decode_code_point_before(text, text.size());
    if (!drop(c.value)) break;
    text.remove_suffix(c.bytes);
  }
  return std::string(text);
}

std::int64_t text_length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string slice_text(const std::string& text, const Value& start, const Value& stop, const Value& step) {
  const std::vector<std::size_t> at = boundaries(text);
  std::string out;
  for (const std::size_t i : slice_indices(static_cast<std::int64_t>(at.size()) - 1, start, stop, step)) {
    out.append(text, at[i], at[i + 1] - at[i]);
  }
  return out;
}

List slice_list(const List& list, const Value& start, const Value& stop, const Value& step) {
  List out;
  for (const std::size_t i : slice_indices(static_cast<std::int64_t>(list.size()), start, stop, step)) {
    out.push_back(list[i]);
  }
  return out;
}

std::string replace_all(const std::string& text, const Value& from, const Value& to, std::int64_t count) {
  if (!from.is_string() || !to.is_string()) throw TemplateError("replace needs two strings");
  if (from.string().empty()) throw TemplateError("replacing the empty string is not supported");
  std::string out;
  std::size_t at = 0;
  while (count != 0) {
    const std::size_t found = text.find(from.string(), at);
    if (found == std::string::npos) break;
    out.append(text, at, found - at);
    out += to.string();
    check_text_size(out.size());
    at = found + from.string().size();
    if (count > 0) --count;
  }
  return out.append(text, at, std::string::npos);
}

std::string join(const List& items, const std::string& separator) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += separator;
    out += items[i].text();
    check_text_size(out.size());
  }
  return out;
}

std::string lower(const std::string& text) {
  std::string out = ascii_only(text, "lower case");
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

std::string upper(const std::string& text) {
  std::string out = ascii_only(text, "upper case");
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return out;
}

std::string capitalize(const std::string& text) {
  std::string out = lower(text);
  if (!out.empty()) out[0] = upper(out.substr(0, 1))[0];
  return out;
}

namespace {

std::string need_string(const Value& value, const Arguments& arguments) {
  if (!value.is_string()) throw TemplateError(arguments.where() + " needs a string, found " + value.type_name());
  return value.string();
}

std::int64_t need_integer(const Value& value, const Arguments& arguments) {
  if (!value.is_integral()) throw TemplateError(arguments.where() + " needs an integer, found " + value.type_name());
  return value.integer();
}

void check_parts(const List& parts) {
  if (parts.size() > 1000000) throw TemplateError("a text is split into more than a million parts");
}

List split(const std::string& text, const Value& separator, std::int64_t most, bool from_right) {
  List parts;
  if (separator.is_undefined() || separator.is_none()) {  // runs of white space, none at the ends
    if (most >= 0) throw TemplateError("split at white space with a limit is not supported");
    std::string word;
    for (const Value& character : iterate(text)) {
      if (!is_python_space(decode_code_point(character.string(), 0).value)) {
        word += character.string();
      } else if (!word.empty()) {
        parts.emplace_back(std::move(word));
        word.clear();
      }
    }
    if (!word.empty()) parts.emplace_back(word);
    return parts;
  }
  if (!separator.is_string() || separator.string().empty())
    throw TemplateError("split needs a separator that is not empty");
  const std::string& by = separator.string();
  if (!from_right) {
    std::size_t at = 0;
    for (std::size_t found; most-- != 0 && (found = text.find(by, at)) != std::string::npos; at = found + by.size()) {
      parts.emplace_back(text.substr(at, found - at));
      check_parts(parts);
    }
    parts.emplace_back(text.substr(at));
    return parts;
  }
  std::size_t end = text.size();
  while (most-- != 0 && end >= by.size()) {
    const std::size_t found = text.rfind(by, end - by.size());
    if (found == std::string::npos) break;
    parts.emplace_back(text.substr(found + by.size(), end - found - by.size()));
    check_parts(parts);
    end = found;
  }
  parts.emplace_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

bool has_affix(const std::string& text, const Value& affix, bool front) {
  if (affix.is_tuple()) {
    return std::any_of(affix.list().begin(), affix.list().end(),
                       [&](const Value& one) { return has_affix(text, one, front); });
  }
  if (!affix.is_string()) throw TemplateError("startswith and endswith need a string, found " + affix.type_name());
  return front ? text.starts_with(affix.string()) : text.ends_with(affix.string());
}

std::int64_t count_of(const std::string& text, const std::string& needle) {
  if (needle.empty()) throw TemplateError("counting the empty string is not supported");
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = text.find(needle, at)) != std::string::npos; at += needle.size()) ++count;
  return count;
}

Value call_string_method(const std::string& text, const std::string& name, Arguments& arguments) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return strip(text, arguments.take("chars"), name != "rstrip", name != "lstrip");
  }
  if (name == "split" || name == "rsplit") {
    const Value separator = arguments.take("sep");
    const std::int64_t most = need_integer(arguments.take("maxsplit", std::int64_t{-1}), arguments);
    return split(text, separator, most, name == "rsplit");
  }
  if (name == "startswith") return has_affix(text, arguments.take("prefix"), true);
  if (name == "endswith") return has_affix(text, arguments.take("suffix"), false);
  if (name == "replace") {
    const Value from = arguments.take("old"), to = arguments.take("new");
    return replace_all(text, from, to, need_integer(arguments.take("count", std::int64_t{-1}), arguments));
  }
  if (name == "find" || name == "rfind") {
    const std::string needle = need_string(arguments.take("sub"), arguments);
    const std::size_t at = name == "find" ? text.find(needle) : text.rfind(needle);
    return at == std::string::npos ? std::int64_t{-1} : text_length(std::string_view(text).substr(0, at));
  }
  if (name == "count") return count_of(text, need_string(arguments.take("sub"), arguments));
  if (name == "join") {
    const List items = iterate(arguments.take("iterable"));
    for (const Value& item : items) need_string(item, arguments);
    return join(items, text);
  }
  if (name == "lower") return lower(text);
  if (name == "upper") return upper(text);
  if (name == "capitalize") return capitalize(text);
  if (name == "isspace") return !text.empty() && strip(text, Value(), true, false).empty();
  throw TemplateError("the string method '" + name + "' is not supported");
}

}  // namespace

Value call_method(const Value& object, const std::string& name, Arguments arguments) {
  Value result;
  if (object.is_string()) {
    result = call_string_method(object.string(), name, arguments);
  } else if (object.is_dict() && name == "get") {
    const std::string key = need_string(arguments.take("key"), arguments);
    const Value fallback = arguments.take("default", None{});
    const Value* member = object.member(key);
    result = member != nullptr ? *member : fallback;
  } else if (object.is_dict() && (name == "items" || name == "keys" || name == "values")) {
    List items;
    for (const auto& [key, value] : object.dict()) {
      items.push_back(name == "keys"     ? Value(key)
                      : name == "values" ? value
                                         : Value(List{key, value}, Sequence::kTuple));
    }
    result = Value(std::move(items), Sequence::kView);
  } else if (object.is_undefined()) {
    throw TemplateError("'" + name + "' is called on something undefined");
  } else {
    throw TemplateError("the method '" + name + "' of " + object.type_name() + " is not supported");
  }
  arguments.finish();
  return result;
}

}  // namespace oscar::jinja
