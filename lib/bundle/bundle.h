// A bundle: what oscar-fit writes and oscar-verify / oscar-export read. Directory with oscar_bundle.json (manifest),
// rotations.safetensors (F32) and README.md (model card). Byte-level description: schemas/README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "rotation/transform.h"

namespace oscar {

struct Windows {
  std::int64_t sink = 64, recent = 256;  // BF16 tokens at the start and at the end
};

struct Bundle {
  std::string method;             // oscar | hadamard | identity | ...
  std::string scope;              // layer | head
  std::string model_fingerprint;  // of the model it was fitted on; empty: unknown (published files)
  Json model;                     // name, architecture and geometry, for people
  Windows windows;
  std::string encoder = "minmax";
  std::int64_t group = 0;                            // quantisation group; 0: whole head
  std::int64_t hadamard_block = 0;                   // largest power of two that divides d
  float global_key_clip = 0, global_value_clip = 0;  // the one pair the published format can carry
  std::vector<LayerTransform> layers;
  Json provenance;  // statistics file, prompt set, options, tool version
  Json fit_report;  // per layer: captured energy, predicted errors
};

// Writes the directory atomically (built beside and renamed). UsageError when it exists and overwrite is false.
void save_bundle(const Bundle& bundle, const fs::path& directory, bool overwrite);
// Reads and validates structure, versions and sha256 of each file. InputError on any fault.
Bundle load_bundle(const fs::path& directory);
// Finite, orthogonal (max |M M^T - I| <= 1e-4), shapes, K and V alike. Empty when sound, else one sentence per fault.
std::vector<std::string> check_bundle(const Bundle& bundle);

}  // namespace oscar
