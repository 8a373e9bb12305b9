// The "normalizer" of tokenizer.json.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"

namespace oscar {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(std::string& text) const = 0;  // valid UTF-8 in and out
};

// Null for a JSON null. InputError names an unsupported type.
std::unique_ptr<Normalizer> make_normalizer(const Json& description, const std::string& where);

}  // namespace oscar
