// Values as text: Python's str and repr, and json.dumps.
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/budget.h"
#include "text/jinja/value.h"
#include "text/unicode/unicode.h"

namespace oscar::jinja {
namespace {

// Python's repr of a float: the shortest digits that read back to the same value, with an exponent below 1e-4 and from
// 1e16.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto done = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view all(buffer, static_cast<std::size_t>(done.ptr - buffer));
  const std::size_t e = all.find('e');
  const int exponent = std::atoi(std::string(all.substr(e + 1)).c_str());
  std::string digits;
  for (const char c : all.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string text = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    text += digits.substr(0, 1) + (digits.size() > 1 ? "." + digits.substr(1) : "");
    char tail[16];
    std::snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return text + tail;
  }
  if (exponent < 0) return text + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return text + digits + std::string(whole - digits.size(), '0') + ".0";
  return text + digits.substr(0, whole) + "." + digits.substr(whole);
}

// Python's str.isprintable.
bool is_printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

void append_hex(std::string& out, const char* format, char32_t c) {
  char escape[16];
  std::snprintf(escape, sizeof escape, format, static_cast<unsigned>(c));
  out += escape;
}

void write_string_repr(const std::string& text, std::string& out) {
  const bool doubled = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char32_t quote = doubled ? '"' : '\'';
  append_utf8(out, quote);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    at += c.bytes;
    if (c.value == quote || c.value == '\\') {
      out += '\\';
      append_utf8(out, c.value);
    } else if (c.value == '\n' || c.value == '\r' || c.value == '\t') {
      out += c.value == '\n' ? "\\n" : c.value == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c.value)) {
      append_utf8(out, c.value);
    } else {
      append_hex(out, c.value < 0x100 ? "\\x%02x" : c.value < 0x10000 ? "\\u%04x" : "\\U%08x", c.value);
    }
  }
  append_utf8(out, quote);
}

// Charges the text written since `written`. A value can contain itself many times, so its text can be much larger.
void charge(const std::string& out, std::size_t& written) {
  Budget::spend(20 + 4 * (out.size() - written));
  Budget::hold(out.size() - written);
  written = out.size();
}

class ReprWriter {
 public:
  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& value, int depth) {
    if (depth > kMostDepth) throw TemplateError("a namespace that holds itself, or is nested too deep, is written");
    if (value.is_string()) {
      if (value.is_markup()) out_ += "Markup(";
      write_string_repr(value.string(), out_);
      if (value.is_markup()) out_ += ')';
    } else if (value.is_sequence(Sequence::kList) || value.is_tuple()) {
      const bool tuple = value.is_tuple();
      const List& items = value.list();
      out_ += tuple ? '(' : '[';
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out_ += ", ";
        write(items[i], depth + 1);
      }
      if (tuple && items.size() == 1) out_ += ',';
      out_ += tuple ? ')' : ']';
    } else if (value.is_dict()) {
      write_members(value.dict(), depth);
    } else if (value.as_namespace() != nullptr) {
      out_ += "<Namespace ";
      write_members(*value.as_namespace()->members, depth);
      out_ += '>';
    } else if (value.is_undefined()) {
      out_ += "Undefined";
    } else {
      out_ += value.text();
    }
    charge(out_, written_);
  }

  void write_members(const Dict& members, int depth) {
    out_ += '{';
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out_ += ", ";
      const Key& key = members[i].first;
      if (key.number()) {
        out_ += key.text();
      } else {
        write_string_repr(key.text(), out_);
      }
      out_ += ": ";
      write(members[i].second, depth + 1);
    }
    out_ += '}';
  }

  static constexpr int kMostDepth = 200;
  std::string out_;
  std::size_t written_ = 0;
};

void write_json_string(const std::string& text, bool ascii_only, std::string& out) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    const auto known =
        c.value < 0x80 ? std::string_view("\"\\\b\t\n\f\r").find(static_cast<char>(c.value)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out += {'\\', "\"\\btnfr"[known]};
    } else if (c.value < 0x20 || (ascii_only && c.value >= 0x7F && c.value < 0x10000)) {
      append_hex(out, "\\u%04x", c.value);
    } else if (ascii_only && c.value >= 0x10000) {
      append_hex(out, "\\u%04x", 0xD800 + ((c.value - 0x10000) >> 10));
      append_hex(out, "\\u%04x", 0xDC00 + ((c.value - 0x10000) & 0x3FF));
    } else {
      out.append(text, at, c.bytes);
    }
    at += c.bytes;
  }
  out += '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void line(std::size_t depth) {
    if (!style_.indent) return;
    out_ += '\n';
    for (std::size_t i = 0; i < depth; ++i) out_ += *style_.indent;
  }

  void write(const Value& value, std::size_t depth) {
    if (value.is_sequence(Sequence::kList) || value.is_tuple()) {
      write_list(value.list(), depth);
    } else if (value.is_dict()) {
      write_dict(value.dict(), depth);
    } else if (value.is_string()) {
      write_json_string(value.string(), style_.ascii_only, out_);
    } else if (value.is_bool()) {
      out_ += value.integer() != 0 ? "true" : "false";
    } else if (value.is_none()) {
      out_ += "null";
    } else if (value.is_number()) {
      const std::string text = value.text();
      out_ += text == "nan" ? "NaN" : text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
    } else {
      throw TemplateError("tojson cannot write " + value.type_name());
    }
    charge(out_, written_);
  }

  void write_list(const List& items, std::size_t depth) {
    out_ += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.comma;
      line(depth + 1);
      write(items[i], depth + 1);
    }
    if (!items.empty()) line(depth);
    out_ += ']';
  }

  void write_dict(const Dict& members, std::size_t depth) {
    std::vector<const Dict::value_type*> order;
    for (const auto& member : members) order.push_back(&member);
    if (style_.sort_keys) {
      Budget::spend(40 * order.size());
      for (const auto* member : order) {
        if (member->first.number().has_value() != order.front()->first.number().has_value()) {
          throw TemplateError("ordering keys that are texts and numbers is not supported");
        }
      }
      std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
        if (a->first.number()) return *a->first.number() < *b->first.number();
        return a->first.text() < b->first.text();
      });
    }
    out_ += '{';
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0) out_ += style_.comma;
      line(depth + 1);
      write_json_string(order[i]->first.text(), style_.ascii_only, out_);
      out_ += style_.colon;
      write(order[i]->second, depth + 1);
    }
    if (!order.empty()) line(depth);
    out_ += '}';
  }

  const JsonStyle& style_;
  std::string out_;
  std::size_t written_ = 0;
};

}  // namespace

std::string repr(const Value& value) { return ReprWriter().run(value); }

std::string Value::text() const {
  if (is_string()) return string();
  if (is_undefined()) return "";
  if (is_none()) return "None";
  if (is_bool()) return integer() != 0 ? "True" : "False";
  if (is_int()) return std::to_string(integer());
  if (is_float()) return float_text(number());
  if (is_dict() || is_tuple() || is_sequence(Sequence::kList) || as_namespace() != nullptr) return repr(*this);
  throw TemplateError("writing a " + type_name() + " as text is not supported");
}

std::string to_json(const Value& value, const JsonStyle& style) { return JsonWriter(style).run(value); }

}  // namespace oscar::jinja
