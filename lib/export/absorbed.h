// A checkpoint in Hugging Face layout whose projections produce a bundle's transformed values. The value transform is
// absorbed into W_V, its inverse into W_O, and the value mean into their biases. Logits do not change, and an engine
// can quantize values without a rotation.
//   v' = (v - mean) F:   W_V' = F^T W_V of the KV head,  b_V' = (b_V - mean) F
//   o  = o' F^-1 + mean: W_O' = W_O F^-T of each query head,  b_O' = b_O + sum over query heads of W_O mean
// Keys do not change. All supported architectures apply RoPE to every key channel, and RoPE does not commute with the
// key transform.
#pragma once

#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

inline constexpr const char* kAbsorbedName = "oscar_absorbed.json";  // records the changes and marks such directories
inline constexpr const char* kAbsorbedBundle = "oscar_bundle";       // folder of the bundle for the new checkpoint

// The functions of the row `absorbed` of export_formats(); the last two use options.model.
// Checks before any writing. InputError for a value mean if the architecture has no bias at o_proj, or for a bundle of
// another model.
void check_absorb(const ExportFormat&, const Checkpoint& source, const Bundle& bundle);

// Writes the directory atomically: shards as in the source (unchanged tensors byte for byte), config.json, tokenizer
// and other small files. config.json gets attention_bias if biases are new. It also writes a bundle for the new
// checkpoint whose value transforms are the identity. Returns the file names.
std::vector<std::string> write_absorbed(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                        const ExportOptions& options);
std::string absorbed_plan(const ServedForm& form, const ExportOptions& options);

}  // namespace oscar
