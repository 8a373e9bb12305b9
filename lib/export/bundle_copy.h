// The copy of a bundle that goes into an export whose engine reads the bundle itself.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace oscar {

constexpr const char* kBundleFolder = "oscar_bundle";

// Copies the files of a bundle that its manifest lists into kBundleFolder of `directory` and returns their names there,
// "oscar_bundle/oscar_bundle.json" and so on. Each is read once, and what was hashed is what is written: InputError
// where the hash is not the manifest's. Calibration hashes stay out, for exports are passed on; so does a card with
// another content, which load_bundle() lets pass: from a stranger, it may be a link to anything that the user can read.
std::vector<std::string> copy_bundle(const fs::path& bundle, const fs::path& directory);

}  // namespace oscar
