// The "pre_tokenizer" of tokenizer.json, which splits a text into words for BPE.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace oscar {

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

}  // namespace oscar
