// The files that make up a bundle.
#pragma once

#include <vector>

#include "bundle/atomic_directory.h"

namespace oscar {

DirectoryKind bundle_directory();                               // its files: what the manifest lists
std::vector<fs::path> bundle_files(const fs::path& directory);  // these files in a bundle

}  // namespace oscar
