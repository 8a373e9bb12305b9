// checkpoints.json of a bundle: further checkpoints that it may serve, such as a quantized twin of its model.
// oscar-verify --add-checkpoint adds one whose gates passed. docs/format-bundle.md has the format.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace oscar {

struct Bundle;

inline constexpr const char* kCheckpointsName = "checkpoints.json";

struct AddedCheckpoint {
  std::string fingerprint, name;  // name: for people
  double kl = 0;                  // mean, in nats, when it was added
};

// Empty without the file. InputError if the file is damaged or of another bundle. numbers_sha256: of the manifest.
std::vector<AddedCheckpoint> load_checkpoints(const fs::path& bundle, const std::string& numbers_sha256);

// The content of the file.
std::vector<AddedCheckpoint> checkpoints_from_json(const Json& json, const std::string& where,
                                                   const std::string& numbers_sha256);

// Adds a checkpoint to the file, or replaces its entry. Other files of the bundle, and so their hashes, stay.
void add_checkpoint(const fs::path& bundle, AddedCheckpoint added);

// Whether the bundle was fitted on this checkpoint, or has it among the added ones.
bool serves_checkpoint(const Bundle& bundle, const std::string& fingerprint);

}  // namespace oscar
