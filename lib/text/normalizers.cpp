#include "text/normalizers.h"

#include <vector>

#include "base/budget.h"
#include "base/errors.h"
#include "text/components.h"
#include "text/unicode.h"

namespace oscar {
namespace {

class Form : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  void apply(std::string& text) const override { text = normalize_form(text, form_); }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint c = decode_code_point(text, at);
      at += c.bytes;
      append_lowercase(out, c.value);
    }
    text = std::move(out);
  }
};

class StripAccents : public Normalizer {
 public:
  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint c = decode_code_point(text, at);
      if (!is_mark(c.value)) out.append(text, at, c.bytes);
      at += c.bytes;
    }
    text = std::move(out);
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text) const override {
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
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
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
  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    for (const Part& part : pattern_.split(text)) {
      if (part.match) {
        out += content_;
        Budget::spend(20 + content_.size());
        Budget::hold(content_.size());
      } else {
        out.append(text, part.begin, part.end - part.begin);
      }
    }
    text = std::move(out);
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size() * 2);
    for (const char c : text) out += byte_to_text(static_cast<unsigned char>(c));
    text = std::move(out);
  }
};

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(std::string& text) const override {
    for (const auto& step : steps_) {
      step->apply(text);
      Budget::spend(10 * text.size());
      Budget::hold(text.size());
    }
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
                   "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, ByteLevel and Sequence");
}

}  // namespace oscar
