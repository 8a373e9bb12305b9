// Writes rotation files for the OSCAR branch of SGLang from a bundle, with a model card, the serve command and
// checksums. Version 1 has one matrix per layer and version 2 one per KV head. Version 3 has transforms that are not
// orthogonal and centered keys (layout uniform).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

// Whether a side of any layer has one matrix per KV head.
bool per_head(const Bundle& bundle);

// The functions of the rows sglang-branch, sglang-branch-v2 and sglang-branch-v3 of export_formats(). Every written
// rotation is read back and compared bit for bit before the directory appears.
std::optional<std::string> branch_unsupported(const ExportFormat& format, const Bundle& bundle);
ServedForm branch_form(const ExportFormat& format, const Bundle& bundle);
std::string branch_plan(const ServedForm& form, const ExportOptions& options);
std::vector<std::string> write_branch(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                      const ExportOptions& options);

}  // namespace oscar
