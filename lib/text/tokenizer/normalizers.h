// The "normalizer" of tokenizer.json.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"

namespace oscar {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Takes and returns valid UTF-8. Returns whether characters at the start were removed. The new first character then
  // does not count as the start of the user's text (Metaspace's prepend_scheme "first").
  virtual bool apply(std::string& text) const = 0;
};

// Null for a JSON null. InputError names an unsupported type.
std::unique_ptr<Normalizer> make_normalizer(const Json& description, const std::string& where);

}  // namespace oscar
