#include "text/tokenizer/stages.h"

#include <string_view>
#include <vector>

#include "base/budget.h"
#include "base/errors.h"
#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/components.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

class Form : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  bool apply(std::string& text) const override {
    text = normalize_form(text, form_);
    return false;
  }

 private:
  NormalForm form_;
};

// Concatenates the results of put(code point, its bytes, &text) for each code point.
template <typename Put>
std::string each_code_point(const std::string& text, const Put& put) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    put(c.value, std::string_view(text).substr(at, c.bytes), out);
    at += c.bytes;
  }
  return out;
}

class Lowercase : public Normalizer {
 public:
  bool apply(std::string& text) const override {
    text = each_code_point(text, [](char32_t c, std::string_view, std::string& out) { append_lowercase(out, c); });
    return false;
  }
};

class StripAccents : public Normalizer {
 public:
  bool apply(std::string& text) const override {
    const bool removed = !text.empty() && is_mark(decode_code_point(text, 0).value);
    text = each_code_point(text, [](char32_t c, std::string_view bytes, std::string& out) {
      if (!is_mark(c)) out += bytes;
    });
    return removed;
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string& text) const override {
    std::size_t begin = 0, end = text.size();
    while (left_ && begin < end) {
      const CodePoint c = decode_code_point(text, begin);
      if (!is_whitespace(c.value)) break;
      begin += c.bytes;
    }
    while (right_ && end > begin) {
      const CodePoint c = decode_code_point_before(text, end);
      if (!is_whitespace(c.value)) break;
      end -= c.bytes;
    }
    text = text.substr(begin, end - begin);
    return begin > 0;
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  bool apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
    return false;
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(const Json& description, const std::string& where)
      : pattern_(description, where), content_(json_string(description, "content", where)) {
    if (pattern_.is_regex() && content_.find('$') != std::string::npos) {
      throw InputError(where + ": Replace puts group references ('$') into a regular expression's replacement, which " +
                       "is not supported");
    }
  }
  bool apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    bool removed = false;
    for (const Part& part : pattern_.split(text)) {
      if (part.match) {
        removed = removed || (part.begin == 0 && part.end > 0 && content_.empty());
        out += content_;
        Budget::spend(20 + content_.size());
        Budget::hold(content_.size());
      } else {
        out.append(text, part.begin, part.end - part.begin);
      }
    }
    text = std::move(out);
    return removed;
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  bool apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size() * 2);
    for (const char c : text) out += byte_to_text(static_cast<unsigned char>(c));
    text = std::move(out);
    return false;
  }
};

// The rules that SentencePiece took from neural machine translation: removes controls and converts other white space to
// spaces.
class Nmt : public Normalizer {
 public:
  bool apply(std::string& text) const override {
    const bool removed = !text.empty() && is_dropped(decode_code_point(text, 0).value);
    text = each_code_point(text, [](char32_t c, std::string_view bytes, std::string& out) {
      if (is_space(c)) {
        out.push_back(' ');
      } else if (!is_dropped(c)) {
        out += bytes;
      }
    });
    return removed;
  }

 private:
  static bool is_dropped(char32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
  }
  static bool is_space(char32_t c) {
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  }
};

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  bool apply(std::string& text) const override {
    bool removed = false;
    for (const auto& step : steps_) {
      removed = step->apply(text) || removed;
      Budget::spend(10 * text.size());
      Budget::hold(text.size());
    }
    return removed;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Json& description, const std::string& where) {
  if (description.is_null()) return nullptr;
  const std::string type = json_string(description, "type", where);
  const std::string at = where + " " + type;
  if (type == "NFC") return std::make_unique<Form>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<Form>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<Form>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<Form>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "Precompiled") {
    if (json_member(description, "precompiled_charsmap").is_null()) return nullptr;
    return std::make_unique<Charsmap>(json_string(description, "precompiled_charsmap", at), at);
  }
  if (type == "Prepend") return std::make_unique<Prepend>(json_string(description, "prepend", at));
  if (type == "Replace") return std::make_unique<Replace>(description, at);
  if (type == "Strip") {
    const bool left = need_bool(description, "strip_left", at);
    return std::make_unique<Strip>(left, need_bool(description, "strip_right", at));
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const Json& step : json_array(description, "normalizers", at)) {
      if (auto made = make_normalizer(step, at)) steps.push_back(std::move(made));
    }
    return std::make_unique<SequenceNormalizer>(std::move(steps));
  }
  refuse_component(where, "normalizer", type,
                   "NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Lowercase, StripAccents, Strip, Prepend, Replace, "
                   "ByteLevel and Sequence");
}

}  // namespace oscar
