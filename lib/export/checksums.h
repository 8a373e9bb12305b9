// SHA256SUMS of an export: what `sha256sum -c` checks, and how oscar-export knows a directory of its own again.
#pragma once

#include <string>
#include <vector>

#include "bundle/atomic_directory.h"

namespace oscar {

inline constexpr const char* kChecksumsName = "SHA256SUMS";

// Directories with such a file; theirs are the files that it names.
DirectoryKind checksummed_directory();

// Writes the file over `names`, which are relative to the directory. Returns `names` with its own at the end.
std::vector<std::string> write_checksums(const fs::path& directory, std::vector<std::string> names);

}  // namespace oscar
