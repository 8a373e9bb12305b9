// Format hub: a folder to upload to the Hugging Face Hub, which `--bundle hf:ORG/NAME` and both engines read from the
// cache. It holds safetensors, JSON and a card, and nothing of the machine that wrote it.
#pragma once

#include "export/export_format.h"

namespace oscar {

std::string hub_plan(const ServedForm& form, const ExportOptions& options);
std::vector<std::string> write_hub(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                   const ExportOptions& options);

// A report without commands and addresses; of a path only the last name stays.
Json without_places(const Json& report);

}  // namespace oscar
