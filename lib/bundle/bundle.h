// A bundle: what oscar-fit writes and oscar-verify / oscar-export read. Directory with oscar_bundle.json (manifest),
// rotations.safetensors (F32), README.md (model card) and
// calibration_hashes.json (may be left out). Byte-level description: docs/format-bundle.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "checkpoint/model_config.h"
#include "layout/cache_windows.h"
#include "rotation/transform.h"

namespace oscar {

// 2: block widths; 3: metrics of encoder feedback, rotated means. Bundles are written as the lowest
// version that can carry them.
inline constexpr std::int64_t kBundleFormatVersion = 3;
inline constexpr const char* kManifestName = "oscar_bundle.json";
inline constexpr const char* kRotationsName = "rotations.safetensors";
inline constexpr const char* kCardName = "README.md";

struct Bundle {
  std::string method;               // oscar | hadamard | identity | published | ...
  std::string scope;                // layer | head
  std::string model_fingerprint;    // of the model it was fitted on; empty: unknown (published files)
  Json model = Json::object();      // name, architecture, layers, query_heads, kv_heads, head_dim, hidden; for people
  CacheWindows windows;             // sink and recent; flush stays 1
  std::string encoder = "minmax";   // minmax | search | feedback
  std::int64_t quant_group = 0;     // quantization group; 0: whole head
  std::int64_t hadamard_block = 0;  // largest power of two that divides d
  float global_key_clip = 0, global_value_clip = 0;  // the one pair the published format can carry
  std::vector<LayerTransform> layers;                // ascending layer ids
  Json provenance = Json::object();                  // statistics file, prompt set, options, tool version
  Json fit_report = Json::object();                  // per layer: captured energy, predicted errors
  Json calibration_hashes = Json::array();           // of the calibration text, a file of its own; may be empty

  // For the one vector of latent attention: `latent` of the model says how many of its channels are the latent (rank),
  // and how many turn behind them (rotated). Values have the keys' transform and its way back.
  bool one_vector() const { return model.contains("latent"); }
};

// Writes the directory atomically (built beside and renamed). UsageError when it exists and overwrite is false, or
// when overwrite would replace a directory that is not a bundle. Equal bundles give byte-identical files.
void save_bundle(const Bundle& bundle, const fs::path& directory, bool overwrite);

// Reads and validates structure, versions, sizes and sha256 of each file, and (check_numbers) what check_bundle finds.
// InputError on any fault. An edited or missing README.md is only warned about: it is text for people.
Bundle load_bundle(const fs::path& directory, bool check_numbers = true);

// Finite, orthogonal (max |M M^T - I| <= 1e-4; other transforms: forward and inverse cancel), shapes, clips, K and V
// alike. Empty when sound, else one sentence per fault.
std::vector<std::string> check_bundle(const Bundle& bundle);

// The most tokens that a key was before its query in the calibration; 0: the bundle does not say it.
std::int64_t longest_distance(const Bundle& bundle);

// Does the bundle belong to this model? Layers, KV heads, head size, one vector or two and, where the bundle knows it,
// the fingerprint (Checkpoint::fingerprint). A layer may be missing that the bundle lists as left out, where its
// windows hold all that a query of the layer sees. Empty when it does, else one sentence per difference.
std::vector<std::string> check_bundle_model(const Bundle& bundle, const ModelConfig& model,
                                            const std::string& fingerprint);

}  // namespace oscar
