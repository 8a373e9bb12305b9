// Finds a model on disk: a directory, or org/name in the Hugging Face cache. Never uses the network.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace oscar {

struct ModelLocation {
  fs::path directory;    // contains config.json
  std::string name;      // "Qwen/Qwen3-8B", or the directory's name
  std::string revision;  // commit hash of the snapshot; empty for a plain directory
};

// `model` is a directory, or an org/name to look up in $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub or
// ~/.cache/huggingface/hub. The lookup follows refs/<revision> -> snapshots/<commit>; `revision` may also be a commit
// hash. If not found: InputError with the `hf download` command.
ModelLocation locate_model(const std::string& model, const std::string& revision = "");

// The same for a repository in the cache whose snapshot must have `file`.
ModelLocation locate_repository(const std::string& name, const std::string& revision, const std::string& file);

// The files that make up a checkpoint.
// Configuration, weights, tokenizer and chat template: the files that a command may read. The list includes missing
// files. InputError for a damaged shard index.
std::vector<fs::path> checkpoint_files(const ModelLocation& location);

// What to do with a GGUF file, if `path` names or holds one; otherwise empty.
std::string gguf_advice(const fs::path& path);

}  // namespace oscar
