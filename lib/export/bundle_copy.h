// Copies a bundle into an export whose engine reads the bundle itself.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "bundle/atomic_directory.h"

namespace oscar {

constexpr const char* kBundleFolder = "oscar_bundle";

// Copies the files listed in a bundle's manifest into `folder` of `directory`; empty: into itself. Returns their names
// there, "oscar_bundle/oscar_bundle.json" and so on. Each file is read once, so the hashed bytes are the written bytes.
// InputError if a hash differs from the manifest.
// Calibration hashes are left out because exports are shared. A card with other content, which load_bundle() accepts,
// is also left out. In a bundle from a stranger it may link to any file that the user can read. left_out: further
// files.
std::vector<std::string> copy_bundle(const fs::path& bundle, const fs::path& directory,
                                     const std::string& folder = kBundleFolder,
                                     const std::set<std::string>& left_out = {});

// SHA256SUMS of an export, for `sha256sum -c`. oscar-export also uses it to recognize its own directories.

inline constexpr const char* kChecksumsName = "SHA256SUMS";

// Directories with such a file; they own the files that it names.
DirectoryKind checksummed_directory();

// Writes the file for `names`, which are relative to the directory. Returns `names` followed by its own name.
std::vector<std::string> write_checksums(const fs::path& directory, std::vector<std::string> names);

}  // namespace oscar
