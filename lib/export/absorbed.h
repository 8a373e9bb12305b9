// A checkpoint in Hugging Face layout whose projections compute a bundle's transformed values themselves: the value
// transform goes into W_V, its inverse into W_O, the value mean into their biases. Logits stay what they were; an
// engine then quantizes values without any rotation of its own.
//   v' = (v - mean) F:   W_V' = F^T W_V of the KV head,  b_V' = (b_V - mean) F
//   o  = o' F^-1 + mean: W_O' = W_O F^-T of each query head,  b_O' = b_O + sum over query heads of W_O mean
// Keys stay as they are: all supported architectures rotate every key channel by position (RoPE), which does not
// commute with the key transform.
#pragma once

#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

inline constexpr const char* kAbsorbedName = "oscar_absorbed.json";  // what was done, and what marks such directories
inline constexpr const char* kAbsorbedBundle = "oscar_bundle";       // folder of the bundle for the new checkpoint

// The functions of the row absorbed of export_formats(); the last two are for options.model.
// Refusals that need no writing: InputError for a value mean where the architecture has no bias at o_proj, or a bundle
// of another model.
void check_absorb(const Checkpoint& source, const Bundle& bundle);

// Writes the directory whole or not at all: shards as in the source (untouched tensors byte for byte), config.json
// (with attention_bias where biases are new), tokenizer and other small files, and a bundle for the new checkpoint
// whose value transforms are the identity. Returns the names of the files.
std::vector<std::string> write_absorbed(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                        const ExportOptions& options);
std::string absorbed_plan(const ServedForm& form, const ExportOptions& options);

}  // namespace oscar
