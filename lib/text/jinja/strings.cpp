// Strings and slices with Python semantics.
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/budget.h"
#include "text/jinja/builtins.h"
#include "text/unicode/unicode.h"

namespace oscar::jinja {
namespace {

bool is_python_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

// The indices of Python's slice for a sequence of a given size: first, first + stride, ..., `count` of them.
struct SliceRange {
  std::int64_t first, stride, count;
};
SliceRange slice_range(std::int64_t size, const Value& start, const Value& stop, const Value& step) {
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
  const std::int64_t bounded = std::clamp<std::int64_t>(stride, -size - 1, size + 1);
  const std::int64_t span = bounded > 0 ? last - first : first - last, pace = bounded > 0 ? bounded : -bounded;
  return {first, bounded, span <= 0 ? 0 : (span + pace - 1) / pace};
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
  std::set<char32_t> set;
  Budget::spend(text.size());
  const bool spaces = characters.is_undefined() || characters.is_none();
  if (!spaces) {
    if (!characters.is_string()) throw TemplateError("strip needs a string, found " + characters.type_name());
    for (std::size_t at = 0; at < characters.string().size();) {
      const CodePoint c = decode_code_point(characters.string(), at);
      set.insert(c.value);
      Budget::spend(60);
      at += c.bytes;
    }
  }
  const auto drop = [&](char32_t c) { return spaces ? is_python_space(c) : set.contains(c); };
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
  Budget::spend(text.size() / 8);
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string slice_text(const std::string& text, const Value& start, const Value& stop, const Value& step) {
  const std::int64_t length = text_length(text);
  const SliceRange range = slice_range(length, start, stop, step);
  if (range.count == 0) return "";
  Budget::spend(text.size());
  const std::int64_t lowest = std::min(range.first, range.first + (range.count - 1) * range.stride);
  std::size_t at = static_cast<std::size_t>(lowest);
  if (length != static_cast<std::int64_t>(text.size())) {  // multi-byte characters: count up to the position
    at = 0;
    for (std::int64_t i = 0; i < lowest; ++i) at += decode_code_point(text, at).bytes;
  }
  const std::int64_t pace = std::abs(range.stride);
  std::vector<std::string_view> pieces;  // characters of the slice, in text order
  Budget::hold(sizeof(std::string_view) * static_cast<std::size_t>(range.count));
  for (std::int64_t i = 0; i < range.count; ++i) {
    for (std::int64_t skip = i == 0 ? 0 : pace; skip > 0; --skip) at += decode_code_point(text, at).bytes;
    pieces.emplace_back(text.data() + at, decode_code_point(text, at).bytes);
  }
  if (range.stride < 0) std::reverse(pieces.begin(), pieces.end());
  std::string out;
  for (const std::string_view piece : pieces) out += piece;
  return out;
}

List slice_list(const List& list, const Value& start, const Value& stop, const Value& step) {
  List out;
  const SliceRange range = slice_range(static_cast<std::int64_t>(list.size()), start, stop, step);
  for (std::int64_t i = 0; i < range.count; ++i) {
    out.push_back(list[static_cast<std::size_t>(range.first + i * range.stride)]);
  }
  return out;
}

std::string replace_all(const std::string& text, const Value& from, const Value& to, std::int64_t count) {
  if (!from.is_string() || !to.is_string()) throw TemplateError("replace needs two strings");
  if (from.string().empty()) throw TemplateError("replacing the empty string is not supported");
  std::string out;
  std::size_t at = 0;
  const TextSearch search(from.string());
  while (count != 0) {
    const std::size_t found = search.find(text, at);
    if (found == std::string::npos) break;
    out.append(text, at, found - at);
    out += to.string();
    Budget::spend(to.string().size() / 4);
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
    Budget::spend(20 + separator.size() / 4 + items[i].weight() / 4);
    check_text_size(out.size());
  }
  return out;
}

std::string lower(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    if (c.value == 0x3A3) throw TemplateError("lower case of the Greek sigma depends on its word and is not supported");
    append_lowercase(out, c.value);
    at += c.bytes;
  }
  Budget::spend(4 * text.size());
  return out;
}

std::string upper(const std::string& text) {
  // Python's uppercase of these has several characters (SpecialCasing.txt).
  static constexpr char32_t kSpecial[][2] = {{0xDF, 0xDF},     {0x149, 0x149},  {0x1F0, 0x1F0},   {0x390, 0x390},
                                             {0x3B0, 0x3B0},   {0x587, 0x587},  {0x1E96, 0x1E9A}, {0x1F50, 0x1F56},
                                             {0x1F80, 0x1FFC}, {0xFB00, 0xFB17}};
  Budget::spend(4 * text.size());
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    at += c.bytes;
    for (const auto& [first, last] : kSpecial) {
      if (c.value < first || c.value > last) continue;
      throw TemplateError("the upper case of '" + text.substr(at - c.bytes, c.bytes) + "' is not supported");
    }
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c.value))));
  }
  return out;
}

std::string capitalize(const std::string& text) {
  if (text.empty()) return "";
  const std::size_t first = decode_code_point(text, 0).bytes;
  return upper(text.substr(0, first)) + lower(text.substr(first));
}

std::string title(const std::string& text) {
  std::string out = ascii_only(text, "title case");
  bool inside = false;  // inside a word
  for (char& c : out) {
    const bool small = c >= 'a' && c <= 'z', large = c >= 'A' && c <= 'Z';
    if (inside && large) c = static_cast<char>(c + 32);
    if (!inside && small) c = static_cast<char>(c - 32);
    inside = small || large;
  }
  return out;
}

std::string title_of_words(const std::string& text) {
  std::string out;
  bool inside = false;  // inside a word
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    const std::string character = text.substr(at, c.bytes);
    at += c.bytes;
    const bool separates =
        is_python_space(c.value) ||
        (c.value < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.value)) != std::string_view::npos);
    out += separates ? character : inside ? lower(character) : upper(character);
    inside = !separates;
  }
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

// Splits at runs of white space and ignores it at the ends; after `most` splits the rest stays unsplit.
List split_at_spaces(const std::string& text, std::int64_t most) {
  List parts;
  Budget::spend(2 * text.size());
  const auto skip = [&](std::size_t at, bool spaces) {
    while (at < text.size()) {
      const CodePoint c = decode_code_point(text, at);
      if (is_python_space(c.value) != spaces) break;
      at += c.bytes;
    }
    return at;
  };
  for (std::size_t at = skip(0, true); at < text.size();) {
    if (most-- == 0) {
      parts.emplace_back(strip(std::string_view(text).substr(at), Value(), false, true));
      break;
    }
    const std::size_t end = skip(at, false);
    parts.emplace_back(text.substr(at, end - at));
    at = skip(end, true);
  }
  return parts;
}

List split(const std::string& text, const Value& separator, std::int64_t most, bool from_right) {
  if (separator.is_undefined() || separator.is_none()) {
    if (from_right && most >= 0) throw TemplateError("rsplit at white space is not supported");
    return split_at_spaces(text, most);
  }
  if (!separator.is_string() || separator.string().empty())
    throw TemplateError("split needs a separator that is not empty");
  List parts;
  const std::string& by = separator.string();
  const TextSearch search(by, from_right);
  if (!from_right) {
    std::size_t at = 0;
    for (std::size_t found; most-- != 0 && (found = search.find(text, at)) != std::string::npos;
         at = found + by.size()) {
      parts.emplace_back(text.substr(at, found - at));
    }
    parts.emplace_back(text.substr(at));
    return parts;
  }
  std::size_t end = text.size();
  while (most-- != 0) {
    const std::size_t found = search.find_before(text, end);
    if (found == std::string::npos) break;
    parts.emplace_back(text.substr(found + by.size(), end - found - by.size()));
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
  const TextSearch search(needle);
  for (std::size_t at = 0; (at = search.find(text, at)) != std::string::npos; at += needle.size()) ++count;
  return count;
}

// str.splitlines for the line ends of ASCII and the three of Unicode.
List split_lines(const std::string& text) {
  List lines;
  Budget::spend(2 * text.size());
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    const bool ends = (c.value >= 0x0A && c.value <= 0x0D) || (c.value >= 0x1C && c.value <= 0x1E) || c.value == 0x85 ||
                      c.value == 0x2028 || c.value == 0x2029;
    std::size_t next = at + c.bytes;
    if (ends) {
      lines.emplace_back(text.substr(begin, at - begin));
      if (c.value == '\r' && next < text.size() && text[next] == '\n') ++next;
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

bool ascii_property(const std::string& text, const std::string& name) {
  ascii_only(text, "the properties");
  bool cased = false;
  for (const char c : text) {
    const bool small = c >= 'a' && c <= 'z', large = c >= 'A' && c <= 'Z', digit = c >= '0' && c <= '9';
    cased = cased || small || large;
    if (name == "isdigit" && !digit) return false;
    if (name == "isalpha" && !small && !large) return false;
    if (name == "isalnum" && !small && !large && !digit) return false;
    if ((name == "isupper" && small) || (name == "islower" && large)) return false;
  }
  return name == "isupper" || name == "islower" ? cased : !text.empty();
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
  if (name == "startswith" || name == "endswith") {
    return has_affix(text, arguments.take("affix"), name == "startswith");
  }
  if (name == "replace") {
    const Value from = arguments.take("old"), to = arguments.take("new");
    return replace_all(text, from, to, need_integer(arguments.take("count", std::int64_t{-1}), arguments));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex") {
    const std::string needle = need_string(arguments.take("sub"), arguments);
    const bool from_right = name[0] == 'r';
    const TextSearch search(needle, from_right);
    const std::size_t at = from_right ? search.find_before(text, text.size()) : search.find(text);
    if (at != std::string::npos) return text_length(std::string_view(text).substr(0, at));
    if (name.ends_with("index")) throw TemplateError("a text that is searched with 'index' is not there");
    return std::int64_t{-1};
  }
  if (name == "count") return count_of(text, need_string(arguments.take("sub"), arguments));
  if (name == "partition" || name == "rpartition") {
    const std::string by = need_string(arguments.take("sep"), arguments);
    if (by.empty()) throw TemplateError(arguments.where() + " needs a separator that is not empty");
    const bool from_right = name[0] == 'r';
    const TextSearch search(by, from_right);
    const std::size_t at = from_right ? search.find_before(text, text.size()) : search.find(text);
    List parts = from_right ? List{"", "", text} : List{text, "", ""};
    if (at != std::string::npos) parts = {text.substr(0, at), by, text.substr(at + by.size())};
    return Value(std::move(parts), Sequence::kTuple);
  }
  if (name == "join") {
    const List items = iterate(arguments.take("iterable"));
    for (const Value& item : items) need_string(item, arguments);
    return join(items, text);
  }
  if (name == "lower") return lower(text);
  if (name == "upper") return upper(text);
  if (name == "capitalize") return capitalize(text);
  if (name == "title") return title(text);
  if (name == "splitlines") return split_lines(text);
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string affix = need_string(arguments.take("affix"), arguments);
    if (name == "removeprefix") return text.starts_with(affix) ? text.substr(affix.size()) : text;
    return text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
  }
  if (name == "isdigit" || name == "isalpha" || name == "isalnum" || name == "isupper" || name == "islower") {
    return ascii_property(text, name);
  }
  if (name == "isspace") return !text.empty() && strip(text, Value(), true, false).empty();
  throw TemplateError("the string method '" + name + "' is not supported");
}

// list.index and list.count.
Value find_item(const List& items, const Value& wanted, bool count) {
  std::int64_t found = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!equal(items[i], wanted)) continue;
    if (!count) return static_cast<std::int64_t>(i);
    ++found;
  }
  if (!count) throw TemplateError("a value that is searched with 'index' is not in the list");
  return found;
}

}  // namespace

Value call_method(const Value& object, const std::string& name, Arguments arguments) {
  Value result;
  if (object.is_markup()) {
    throw TemplateError("the method '" + name + "' of a text after safe is not supported");
  } else if (object.is_string()) {
    result = call_string_method(object.string(), name, arguments);
  } else if (object.is_dict() && name == "get") {
    const Value key = arguments.take("key");
    const Value fallback = arguments.take("default", None{});
    if (!key.is_string() && !key.is_none() && !key.is_number()) {
      throw TemplateError("a key of " + key.type_name() + " is not supported");
    }
    const Value* member = object.member_of(key);
    result = member != nullptr ? *member : fallback;
  } else if (object.is_dict() && (name == "items" || name == "keys" || name == "values")) {
    List items;
    for (const auto& [key, value] : object.dict()) {
      items.push_back(name == "keys"     ? key.value()
                      : name == "values" ? value
                                         : Value(List{key.value(), value}, Sequence::kTuple));
    }
    result = Value(std::move(items), Sequence::kView);
  } else if ((object.is_dict() || object.is_sequence(Sequence::kList)) && name == "copy") {
    result = object;
  } else if (object.is_list() && (name == "index" || name == "count") && object.can_index()) {
    result = find_item(object.list(), arguments.take("value"), name == "count");
  } else if (object.is_undefined()) {
    throw TemplateError("'" + name + "' is called on something undefined");
  } else {
    throw TemplateError("the method '" + name + "' of " + object.type_name() + " is not supported");
  }
  arguments.finish();
  return result;
}

}  // namespace oscar::jinja
