// The files of a bundle.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"
#include "bundle/atomic_directory.h"

namespace oscar {

DirectoryKind bundle_directory();                               // its own files: those in the manifest
std::vector<fs::path> bundle_files(const fs::path& directory);  // these files in a bundle
bool may_be_deleted(const std::string& name);                   // by its owner, before the bundle is passed on

// Finds a bundle on disk by what a user names.
// The folder `text`, or for hf:ORG/NAME and hf:ORG/NAME@REVISION the snapshot in the Hugging Face cache. Never uses the
// network. InputError with the `hf download` command if the cache does not have it.
fs::path locate_bundle(const std::string& text);

}  // namespace oscar
