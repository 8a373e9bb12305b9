// A KV-cache method as a description: basis, clip, code, windows for each layer. Executed by one engine; adding a
// method is adding a table entry (registry in method.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "checkpoint/model_config.h"
#include "codec/codec.h"
#include "rotation/transform.h"
#include "runtime/windows.h"

namespace oscar {

struct KvMethod {
  std::string id;         // "oscar"
  std::string source;     // paper or project the definition follows
  bool quantised = true;  // false: bf16, every token stays in BF16
  WindowPolicy windows;
  UniformCode key_code, value_code;
  Encoder key_encoder = Encoder::kMinMax, value_encoder = Encoder::kMinMax;
  std::vector<LayerTransform> layers;  // [L]; empty: identity everywhere, no clip

  double bits_per_element() const;                         // of a quantised token, parameters included
  double bits_per_element_at(std::int64_t context) const;  // b + (16 - b) min(sink + recent, T) / T
};

// Ids: bf16, naive2, hadamard2, and those that need a bundle: oscar (or the bundle's own method name).
std::vector<std::string> method_ids();
// UsageError for an unknown id (with the list and a suggestion) or a bundle that is needed and absent; InputError for
// a bundle whose geometry is not the model's.
KvMethod make_method(const std::string& id, const ModelConfig& model, const Bundle* bundle,
                     const WindowPolicy& windows);

}  // namespace oscar
