#include "text/tokenizer/stages.h"

#include "base/budget.h"
#include "base/errors.h"
#include "text/tokenizer/components.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

// GPT-2's split, which ByteLevel uses unless use_regex is false.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A step that splits every span by some rule.
class Splitter : public PreTokenizer {
 public:
  explicit Splitter(SplitBehavior behavior) : behavior_(behavior) {}
  void apply(PreTokenized& text) const override {
    std::vector<PreTokenized::Span> spans;
    spans.reserve(text.spans.size());
    for (const auto& span : text.spans) append_split(span, parts(text.view(span)), behavior_, spans);
    Budget::spend(2 * text.buffer.size() + 60 * spans.size());
    Budget::hold(sizeof(PreTokenized::Span) * spans.size());
    text.spans = std::move(spans);
  }
  virtual std::vector<Part> parts(std::string_view text) const = 0;

 private:
  SplitBehavior behavior_;
};

class PatternSplit : public Splitter {
 public:
  PatternSplit(TextPattern pattern, SplitBehavior behavior, bool invert)
      : Splitter(behavior), pattern_(std::move(pattern)), invert_(invert) {}
  std::vector<Part> parts(std::string_view text) const override {
    std::vector<Part> found = pattern_.split(text);
    if (invert_) {
      for (Part& part : found) part.match = !part.match;
    }
    return found;
  }

 private:
  TextPattern pattern_;
  bool invert_;
};

class CharacterSplit : public Splitter {
 public:
  CharacterSplit(bool (*is_match)(char32_t), SplitBehavior behavior) : Splitter(behavior), is_match_(is_match) {}
  std::vector<Part> parts(std::string_view text) const override { return split_by_character(text, is_match_); }

 private:
  bool (*is_match_)(char32_t);
};

// Runs of word characters and runs of other visible characters; white space is dropped.
class WordSplit : public Splitter {
 public:
  WordSplit() : Splitter(SplitBehavior::kRemoved) {}
  std::vector<Part> parts(std::string_view text) const override {
    std::vector<Part> found;
    int previous = -1;
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint c = decode_code_point(text, at);
      const int kind = is_word(c.value) ? 1 : is_whitespace(c.value) ? 0 : 2;
      if (kind != previous) found.push_back({at, at, kind == 0});
      at += c.bytes;
      found.back().end = at;
      previous = kind;
    }
    return found;
  }
};

// Rewrites every span into a new buffer; `rewrite` appends the new text of one span.
template <typename Rewrite>
void rewrite_spans(PreTokenized& text, Rewrite rewrite) {
  std::string buffer;
  buffer.reserve(text.buffer.size() + text.buffer.size() / 2);
  for (auto& span : text.spans) {
    const std::size_t begin = buffer.size();
    rewrite(text.view(span), span.at_start, buffer);
    span = {begin, buffer.size(), span.at_start};
    Budget::spend(20 + 4 * (buffer.size() - begin));
    Budget::hold(buffer.size() - begin);
  }
  text.buffer = std::move(buffer);
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, const std::string& where) : add_prefix_space_(add_prefix_space) {
    if (use_regex) regex_ = std::make_unique<Regex>(kGpt2Pattern, where);
  }
  void apply(PreTokenized& text) const override {
    if (add_prefix_space_) {
      rewrite_spans(text, [](std::string_view word, bool, std::string& out) {
        if (word.front() != ' ') out.push_back(' ');
        out += word;
      });
    }
    if (regex_ != nullptr) {
      std::vector<PreTokenized::Span> spans;
      for (const auto& span : text.spans) {
        append_split(span, regex_->split(text.view(span)), SplitBehavior::kIsolated, spans);
      }
      text.spans = std::move(spans);
    }
    rewrite_spans(text, [](std::string_view word, bool, std::string& out) {
      for (const char c : word) out += byte_to_text(static_cast<unsigned char>(c));
    });
  }

 private:
  bool add_prefix_space_;
  std::unique_ptr<Regex> regex_;
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string mark, Prepend prepend, bool split) : mark_(std::move(mark)), prepend_(prepend), split_(split) {}

  void apply(PreTokenized& text) const override {
    rewrite_spans(text, [&](std::string_view word, bool at_start, std::string& out) {
      const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && at_start);
      if (wanted && word.front() != ' ' && !word.starts_with(mark_)) out += mark_;
      for (const char c : word) {
        if (c == ' ') {
          out += mark_;
        } else {
          out.push_back(c);
        }
      }
    });
    if (!split_) return;
    std::vector<PreTokenized::Span> spans;
    for (const auto& span : text.spans) {
      append_split(span, split_by_string(text.view(span), mark_), SplitBehavior::kMergedWithNext, spans);
    }
    text.spans = std::move(spans);
  }

 private:
  std::string mark_;
  Prepend prepend_;
  bool split_;
};

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  void apply(PreTokenized& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

std::unique_ptr<PreTokenizer> make_metaspace(const Json& description, const std::string& where) {
  const std::string mark = json_string(description, "replacement", where);
  if (mark.empty() || decode_code_point(mark, 0).bytes != mark.size()) {
    throw InputError(where + ": 'replacement' is '" + printable(mark) + "', expected one character");
  }
  // Files from before version 0.15 of the Python package have add_prefix_space instead of prepend_scheme.
  std::string scheme = json_string(description, "prepend_scheme", where, "");
  const bool add_prefix_space = json_bool(description, "add_prefix_space", where, true);
  if (scheme.empty()) scheme = add_prefix_space ? "always" : "never";
  auto prepend = Metaspace::Prepend::kAlways;
  if (scheme == "first") {
    prepend = Metaspace::Prepend::kFirst;
  } else if (scheme == "never") {
    prepend = Metaspace::Prepend::kNever;
  } else if (scheme != "always") {
    refuse_component(where, "prepend_scheme", scheme, "always, first and never");
  }
  return std::make_unique<Metaspace>(mark, prepend, json_bool(description, "split", where, true));
}

}  // namespace

PreTokenized::PreTokenized(std::string text, bool at_start) : buffer(std::move(text)) {
  if (!buffer.empty()) spans.push_back({0, buffer.size(), at_start});
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& description, const std::string& where) {
  if (description.is_null()) return nullptr;
  const std::string type = json_string(description, "type", where);
  const std::string at = where + " " + type;
  if (type == "Split") {
    TextPattern pattern(description, at);
    const SplitBehavior behavior = parse_split_behavior(json_string(description, "behavior", at), at);
    return std::make_unique<PatternSplit>(std::move(pattern), behavior, need_bool(description, "invert", at));
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(need_bool(description, "add_prefix_space", at),
                                       json_bool(description, "use_regex", at, true), at);
  }
  if (type == "Digits") {
    const bool individual = need_bool(description, "individual_digits", at);
    return std::make_unique<CharacterSplit>(is_numeric,
                                            individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    return std::make_unique<CharacterSplit>(
        is_punctuation, parse_split_behavior(json_string(description, "behavior", at, "Isolated"), at));
  }
  if (type == "Metaspace") return make_metaspace(description, at);
  if (type == "Whitespace") return std::make_unique<WordSplit>();
  if (type == "WhitespaceSplit") return std::make_unique<CharacterSplit>(is_whitespace, SplitBehavior::kRemoved);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    for (const Json& step : json_array(description, "pretokenizers", at)) {
      if (auto made = make_pre_tokenizer(step, at)) steps.push_back(std::move(made));
    }
    return std::make_unique<SequencePreTokenizer>(std::move(steps));
  }
  refuse_component(where, "pre-tokenizer", type,
                   "Split, ByteLevel, Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit and Sequence");
}

}  // namespace oscar
