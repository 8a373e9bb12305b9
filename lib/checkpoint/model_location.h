// Where a model lives on disk: a directory, or org/name in the Hugging Face cache. Never touches the network.
#pragma once

#include <string>

#include "base/files.h"

namespace oscar {

struct ModelLocation {
  fs::path directory;    // holds config.json
  std::string name;      // "Qwen/Qwen3-8B", or the directory's name
  std::string revision;  // commit hash of the snapshot; empty for a plain directory
};

// `model` is a directory, or org/name looked up in $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub,
// ~/.cache/huggingface/hub (refs/<revision> -> snapshots/<commit>; a commit hash is accepted as revision). A miss
// throws InputError with the `hf download` command that would fetch it.
ModelLocation locate_model(const std::string& model, const std::string& revision = "");

}  // namespace oscar
