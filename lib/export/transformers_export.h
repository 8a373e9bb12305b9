// An export that transformers loads by itself: a folder `custom_generate` whose generate() attaches the bundle beside
// it during a call (python/oscar_kv/hf/generate.py). Both folders can go into a model's directory, a hub
// repository, or a separate place. The bundle is copied byte for byte. generate() contains the digest of its manifest,
// so the served bundle is the evaluated one.
#pragma once

#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

// The functions of the row `transformers` of export_formats().
std::string transformers_plan(const ServedForm& form, const ExportOptions& options);

// Writes the directory atomically and returns its file names.
std::vector<std::string> write_transformers(const ExportFormat& format, const ServedForm& form,
                                            const fs::path& directory, const ExportOptions& options);

}  // namespace oscar
