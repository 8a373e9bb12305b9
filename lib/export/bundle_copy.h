// The copy of a bundle that goes into an export whose engine reads the bundle itself.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace oscar {

constexpr const char* kBundleFolder = "oscar_bundle";

// Copies into kBundleFolder of `directory` those files of a bundle whose content its manifest vouches for, and returns
// their names there, "oscar_bundle/manifest.json" and so on. load_bundle() lets the card and the calibration hashes
// pass with another content: from a stranger, they may be links to anything that the user can read.
std::vector<std::string> copy_bundle(const fs::path& bundle, const fs::path& directory);

}  // namespace oscar
