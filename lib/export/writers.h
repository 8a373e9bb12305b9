// What writes the files of each export format, for the rows of export_formats().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

// A checkpoint in Hugging Face layout whose projections produce a bundle's transformed values. The value transform is
// absorbed into W_V, its inverse into W_O, and the value mean into their biases. Logits do not change, and an engine
// can quantize values without a rotation.
//   v' = (v - mean) F:   W_V' = F^T W_V of the KV head,  b_V' = (b_V - mean) F
//   o  = o' F^-1 + mean: W_O' = W_O F^-T of each query head,  b_O' = b_O + sum over query heads of W_O mean
// Keys do not change. All supported architectures apply RoPE to every key channel, and RoPE does not commute with the
// key transform.

inline constexpr const char* kAbsorbedName = "oscar_absorbed.json";  // records the changes and marks such directories
inline constexpr const char* kAbsorbedBundle = "oscar_bundle";       // folder of the bundle for the new checkpoint

// The functions of the row `absorbed` of export_formats(); the last two use options.model. Checks before any writing.
// InputError for a value mean if the architecture has no bias at o_proj, or for a bundle of another model.
void check_absorb(const ExportFormat&, const Checkpoint& source, const Bundle& bundle);

// Writes the directory atomically: shards as in the source (unchanged tensors byte for byte), config.json, tokenizer
// and other small files. config.json gets attention_bias if biases are new. It also writes a bundle for the new
// checkpoint whose value transforms are the identity. Returns the file names.
std::vector<std::string> write_absorbed(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                        const ExportOptions& options);
std::string absorbed_plan(const ServedForm& form, const ExportOptions& options);

// Writes rotation files for the OSCAR branch of SGLang from a bundle, with a model card, the serve command and
// checksums. Version 1 has one matrix per layer and version 2 one per KV head. Version 3 has transforms that are not
// orthogonal and centered keys (layout uniform).

// Whether a side of any layer has one matrix per KV head.
bool per_head(const Bundle& bundle);

// The functions of the rows sglang-branch, sglang-branch-v2 and sglang-branch-v3 of export_formats(). Every written
// rotation is read back and compared bit for bit before the directory appears.
std::optional<std::string> branch_unsupported(const ExportFormat& format, const Bundle& bundle);
ServedForm branch_form(const ExportFormat& format, const Bundle& bundle);
std::string branch_plan(const ServedForm& form, const ExportOptions& options);
std::vector<std::string> write_branch(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                      const ExportOptions& options);

// Exports for the engines that the Python package is a plugin of: the bundle, and a card with the commands that serve
// it. Bundles that the plugin cannot serve are refused here, before anyone starts a server.

// The functions of the rows of export_formats() with an engine. They refuse head sizes, GQA ratios, windows, layouts
// and groups that the decode kernel does not support. They also refuse keys centered before RoPE in
// layout uniform, and models with layers of engine_limits.h.
std::optional<std::string> engine_unsupported(const ExportFormat& format, const Bundle& bundle);
void engine_check_model(const ExportFormat& format, const Checkpoint& model, const Bundle& bundle);  // InputError
std::optional<std::string> engine_bf16_reason(const ExportFormat& format, const ModelConfig& model, std::int64_t layer);
std::string engine_plan(const ServedForm& form, const ExportOptions& options);
// Writes the directory atomically and returns its file names.
std::vector<std::string> write_engine(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                      const ExportOptions& options);

// Format hub: a folder to upload to the Hugging Face Hub, which `--bundle hf:ORG/NAME` and both engines read from the
// cache. It holds safetensors, JSON and a card, and nothing of the machine that wrote it.

std::optional<std::string> hub_unsupported(const ExportFormat& format, const Bundle& bundle);
std::string hub_plan(const ServedForm& form, const ExportOptions& options);
std::vector<std::string> write_hub(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                   const ExportOptions& options);

// A report without commands and addresses; of a path only the last name stays.
Json without_places(const Json& report);

// An export that transformers loads by itself: a folder `custom_generate` whose generate() attaches the bundle beside
// it during a call (python/oscar_kv/hf/generate.py). Both folders can go into a model's directory, a hub
// repository, or a separate place. The bundle is copied byte for byte. generate() contains the digest of its manifest,
// so the served bundle is the evaluated one.

// The functions of the row `transformers` of export_formats().
std::string transformers_plan(const ServedForm& form, const ExportOptions& options);

// Writes the directory atomically and returns its file names.
std::vector<std::string> write_transformers(const ExportFormat& format, const ServedForm& form,
                                            const fs::path& directory, const ExportOptions& options);

}  // namespace oscar
