// SHA256SUMS of an export, for `sha256sum -c`. oscar-export also uses it to recognize its own directories.
#pragma once

#include <string>
#include <vector>

#include "bundle/atomic_directory.h"

namespace oscar {

inline constexpr const char* kChecksumsName = "SHA256SUMS";

// Directories with such a file; they own the files that it names.
DirectoryKind checksummed_directory();

// Writes the file for `names`, which are relative to the directory. Returns `names` followed by its own name.
std::vector<std::string> write_checksums(const fs::path& directory, std::vector<std::string> names);

}  // namespace oscar
