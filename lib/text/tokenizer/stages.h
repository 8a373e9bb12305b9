// The stages of tokenizer.json around its model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace oscar {

// The "normalizer" of tokenizer.json.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Takes and returns valid UTF-8. Returns whether characters at the start were removed. The new first character then
  // does not count as the start of the user's text (Metaspace's prepend_scheme "first").
  virtual bool apply(std::string& text) const = 0;
};

// Null for a JSON null. InputError names an unsupported type.
std::unique_ptr<Normalizer> make_normalizer(const Json& description, const std::string& where);

// The "pre_tokenizer" of tokenizer.json, which splits a text into words for BPE.

// One text and its words. Steps that only split change the spans; steps that rewrite create a new buffer.
struct PreTokenized {
  struct Span {
    std::size_t begin, end;  // bytes of `buffer`; never empty
    bool at_start;           // starts where the user's text starts (Metaspace's prepend_scheme "first")
  };
  std::string buffer;
  std::vector<Span> spans;

  PreTokenized(std::string text, bool at_start);
  std::string_view view(const Span& span) const {
    return std::string_view(buffer).substr(span.begin, span.end - span.begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PreTokenized& text) const = 0;
};

// Null for a JSON null. InputError names an unsupported type.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& description, const std::string& where);

// The "post_processor" of tokenizer.json, which adds special tokens around a text (BOS, EOS).
class PostProcessor {
 public:
  // A JSON null adds nothing. InputError names an unsupported type.
  PostProcessor(const Json& description, const std::string& where);
  void add_special_tokens(std::vector<std::int32_t>& ids) const;
  std::int32_t highest_id() const;  // highest id that it adds; -1 for none

 private:
  void read(const Json& description, const std::string& where);
  // Applied in order: each adds ids before and after the existing ones.
  struct Frame {
    std::vector<std::int32_t> before, after;
  };
  void add(Frame frame, const std::string& where);  // InputError if a text would get more than a few thousand
  std::vector<Frame> frames_;
  std::size_t added_ = 0;  // ids in all frames
};

// The "decoder" of tokenizer.json, which converts tokens to text.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  // Rewrites the list of pieces; their concatenation is the text.
  virtual void apply(std::vector<std::string>& pieces) const = 0;
};

// Null for a JSON null. InputError names an unsupported type.
std::unique_ptr<TokenDecoder> make_token_decoder(const Json& description, const std::string& where);

}  // namespace oscar
