// Finds a bundle on disk by what a user names.
#pragma once

#include <string>

#include "base/files.h"

namespace oscar {

// The folder `text`, or for hf:ORG/NAME and hf:ORG/NAME@REVISION the snapshot in the Hugging Face cache. Never uses the
// network. InputError with the `hf download` command if the cache does not have it.
fs::path locate_bundle(const std::string& text);

}  // namespace oscar
