// Rotation files for SGLang from a bundle: version 1 (one matrix a layer), version 2 (one for each KV head) and version
// 3 (transforms that are not orthogonal, centered keys; layout uniform), with a model card, the serve command and
// checksums.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

// Does a side of any layer have a matrix of its own for each KV head?
bool per_head(const Bundle& bundle);

// The functions of the rows sglang, sglang-v2 and sglang-v3 of export_formats(). Every rotation that is written is read
// back and compared bit for bit before the directory appears.
std::optional<std::string> sglang_unsupported(const ExportFormat& format, const Bundle& bundle);
ServedForm sglang_form(const ExportFormat& format, const Bundle& bundle);
std::string sglang_plan(const ServedForm& form, const ExportOptions& options);
std::vector<std::string> write_sglang(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                      const ExportOptions& options);

}  // namespace oscar
