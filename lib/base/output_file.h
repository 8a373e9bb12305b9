// Checks where outputs may go, and makes them durable.
#pragma once

#include "base/files.h"

namespace oscar {

// require_absent() for a file name. Overwriting replaces only regular files: UsageError for a device, pipe, link or
// directory. AtomicFile also checks this.
void require_output_file(const fs::path& path, bool overwrite);

void sync_directory(const fs::path& path);  // afterward its entries are on disk, if the file system supports it

}  // namespace oscar
