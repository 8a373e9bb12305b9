// What transformers loads by itself: a folder `custom_generate` whose generate() attaches the bundle beside it for the
// time of a call (python/oscar_kv/custom_generate.py does the work). Both folders go into a model's directory or hub
// repository, or stay by themselves. The bundle is copied byte for byte, and generate() holds the digest of its
// manifest, so that what is served is what was judged.
#pragma once

#include <string>
#include <vector>

#include "export/export_format.h"

namespace oscar {

// The functions of the row transformers of export_formats(); absorbed, whose bundle oscar_kv serves, too, has the
// first.
std::optional<std::string> transformers_unsupported(const ExportFormat& format, const Bundle& bundle);
std::string transformers_plan(const ServedForm& form, const ExportOptions& options);

// Writes the directory whole or not at all; returns the names of its files.
std::vector<std::string> write_transformers(const ExportFormat& format, const ServedForm& form,
                                            const fs::path& directory, const ExportOptions& options);

}  // namespace oscar
