// Where outputs may go, and what makes them last.
#pragma once

#include "base/files.h"

namespace oscar {

// require_absent() for the name of a file, which overwriting replaces only when it is a regular file: no device, pipe,
// link or directory. UsageError. AtomicFile checks it, too.
void require_output_file(const fs::path& path, bool overwrite);

void sync_directory(const fs::path& path);  // its entries are on disk after this, where the file system can

}  // namespace oscar
