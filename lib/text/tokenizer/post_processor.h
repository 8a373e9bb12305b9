// The "post_processor" of tokenizer.json: the special tokens around a text (BOS, EOS).
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
  std::int32_t highest_id() const;  // of the ids it adds; -1 for none

 private:
  void read(const Json& description, const std::string& where);
  // Applied in order: each puts ids before and behind what is there.
  struct Frame {
    std::vector<std::int32_t> before, after;
  };
  void add(Frame frame, const std::string& where);  // InputError where a text would get more than a few thousand
  std::vector<Frame> frames_;
  std::size_t added_ = 0;  // ids of all frames
};

}  // namespace oscar
