// Exports for vLLM and for SGLang's releases: the bundle and a card with the start command. The adapters are
// python/oscar_kv/engines/vllm/backend.py and ../sglang/backend.py. Bundles that they cannot serve are refused
// here, before anyone starts a server.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

// The functions of the rows `vllm` and `sglang-plugin` of export_formats(). They refuse head sizes, GQA ratios,
// windows, layouts and groups that the decode kernel does not support. They also refuse encoder feedback, keys centered
// before RoPE, and models with layers named in vllm_limits.h.
std::optional<std::string> vllm_unsupported(const ExportFormat& format, const Bundle& bundle);
void vllm_check_model(const Checkpoint& model, const Bundle& bundle);           // InputError
void sglang_plugin_check_model(const Checkpoint& model, const Bundle& bundle);  // InputError
std::string vllm_plan(const ServedForm& form, const ExportOptions& options);
std::string sglang_plugin_plan(const ServedForm& form, const ExportOptions& options);

// Writes the directory atomically and returns its file names.
std::vector<std::string> write_vllm(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                    const ExportOptions& options);
std::vector<std::string> write_sglang_plugin(const ExportFormat& format, const ServedForm& form,
                                             const fs::path& directory, const ExportOptions& options);

}  // namespace oscar
