// Exports for the engines that the Python package is a plugin of: the bundle, and a card with the commands that serve
// it. Bundles that the plugin cannot serve are refused here, before anyone starts a server.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

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

}  // namespace oscar
