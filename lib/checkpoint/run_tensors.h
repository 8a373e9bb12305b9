// Files of named tensors in a run's work directory (base/run_directory.h). Each holds its own name and a checksum of
// all that it says, so damage and exchanged files show when it is read.
#pragma once

#include "checkpoint/safetensors.h"

namespace oscar {

// write_safetensors() with both in the metadata.
void save_run_tensors(const fs::path& path, const std::vector<TensorView>& tensors,
                      std::map<std::string, std::string> metadata);

// InputError for a link, another name, or content that was not saved so. Reads the whole file once.
SafetensorsFile open_run_tensors(const fs::path& path);

}  // namespace oscar
