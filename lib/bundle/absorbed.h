// A checkpoint in Hugging Face layout whose projections compute a bundle's transformed values themselves: the value
// transform goes into W_V, its inverse into W_O, the value mean into their biases. Logits stay what they were; an
// engine then quantises values without any rotation of its own.
//   v' = (v - mean) F:   W_V' = F^T W_V of the KV head,  b_V' = (b_V - mean) F
//   o  = o' F^-1 + mean: W_O' = W_O F^-T of each query head,  b_O' = b_O + sum over query heads of W_O mean
// Keys stay as they are: all supported architectures rotate every key channel by position (RoPE), which does not
// commute with the key transform.
#pragma once

#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "checkpoint/checkpoint.h"

namespace oscar {

struct AbsorbOptions {
  DType dtype = DType::kF32;  // of the tensors that change: kF32, or kBF16 (smaller; logits then move by its rounding)
  std::string tool_version;
  bool overwrite = false;
};

inline constexpr const char* kAbsorbedName = "oscar_absorbed.json";  // what was done, and what marks such directories
inline constexpr const char* kAbsorbedBundle = "oscar_bundle";       // folder of the bundle for the new checkpoint

// Refusals that need no writing: InputError for a value mean where the architecture has no bias at o_proj, or a bundle
// of another model.
void check_absorb(const Checkpoint& source, const Bundle& bundle);

// Writes the directory whole or not at all: shards as in the source (untouched tensors byte for byte), config.json
// (with attention_bias where biases are new), tokenizer and other small files, and a bundle for the new checkpoint
// whose value transforms are the identity. Returns the names of the files.
std::vector<std::string> absorb_values(const Checkpoint& source, const Bundle& bundle, const fs::path& directory,
                                       const AbsorbOptions& options);

}  // namespace oscar
