// What a person needs to start vLLM with a bundle: the bundle, and a card with the command. The adapter is
// python/oscar_kv/vllm_backend.py; what it cannot serve is refused here, before anybody starts a server.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

// The functions of the row vllm of export_formats(). Refused are: head sizes, query heads on a KV head, windows,
// layouts and groups that the decode kernel does not have, encoder feedback, and keys centered before RoPE; and models
// with layers that vllm_limits.h names.
std::optional<std::string> vllm_unsupported(const ExportFormat& format, const Bundle& bundle);
void vllm_check_model(const Checkpoint& model, const Bundle& bundle);  // InputError
std::string vllm_plan(const ServedForm& form, const ExportOptions& options);

// Writes the directory whole or not at all; returns the names of its files.
std::vector<std::string> write_vllm(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                    const ExportOptions& options);

}  // namespace oscar
