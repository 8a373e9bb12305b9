// A tokenizer that is read on first use. Rows of token ids need none, so a model with a missing or unsupported
// tokenizer can still be calibrated and evaluated on them.
#pragma once

#include <optional>
#include <utility>

#include "base/files.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

class LazyTokenizer {
 public:
  explicit LazyTokenizer(fs::path tokenizer_json) : file_(std::move(tokenizer_json)) {}
  LazyTokenizer(const Tokenizer& tokenizer) : given_(&tokenizer) {}  // which must outlive this object

  // InputError as in Tokenizer::from_file(), on the first call. For one thread at a time.
  const Tokenizer& get() const;

 private:
  fs::path file_;
  const Tokenizer* given_ = nullptr;
  mutable std::optional<Tokenizer> own_;
};

}  // namespace oscar
