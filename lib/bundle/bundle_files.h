// The files of a bundle.
#pragma once

#include <string>
#include <vector>

#include "bundle/atomic_directory.h"

namespace oscar {

DirectoryKind bundle_directory();                               // its own files: those in the manifest
std::vector<fs::path> bundle_files(const fs::path& directory);  // these files in a bundle
bool may_be_deleted(const std::string& name);                   // by its owner, before the bundle is passed on

}  // namespace oscar
