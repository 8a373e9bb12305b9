// The "post_processor" of tokenizer.json, which adds special tokens around a text (BOS, EOS).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

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

}  // namespace oscar
