#include "text/tokenizer/lazy_tokenizer.h"

namespace oscar {

const Tokenizer& LazyTokenizer::get() const {
  if (given_ != nullptr) return *given_;
  if (!own_) own_ = Tokenizer::from_file(file_);
  return *own_;
}

}  // namespace oscar
