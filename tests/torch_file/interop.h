// The folder of published rotation files that tests read where it is present; it is not part of the source tree.
#pragma once

#include <cstdlib>

#include "base/files.h"
#include "support/paths.h"

namespace oscar {

// OSCAR_INTEROP_DIR, or ../shared/interop beside the source tree; empty when neither exists.
inline fs::path interop_folder() {
  const char* named = std::getenv("OSCAR_INTEROP_DIR");
  const fs::path folder = named != nullptr ? fs::path(named) : fs::path(OSCAR_SOURCE_DIR) / ".." / "shared" / "interop";
  return fs::is_directory(folder) ? folder : fs::path();
}

}  // namespace oscar
