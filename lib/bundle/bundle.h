// A bundle: oscar-fit writes it, oscar-verify and oscar-export read it. It is a directory with oscar_bundle.json
// (manifest), rotations.safetensors (F32), README.md (model card), calibration_hashes.json, self_check.safetensors and
// probe.json (all three optional). Byte-level description: docs/format-bundle.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "bundle/checkpoints.h"
#include "checkpoint/model_config.h"
#include "layout/cache_windows.h"
#include "transform/transform.h"

namespace oscar {

// 2: group bit widths; 3: means of keys before RoPE; 4: latent attention; 5: refined codes of it. A bundle is written
// in the lowest version that can hold it.
inline constexpr std::int64_t kBundleFormatVersion = 5;
inline constexpr const char* kManifestName = "oscar_bundle.json";
inline constexpr const char* kRotationsName = "rotations.safetensors";
inline constexpr const char* kCardName = "README.md";
inline constexpr const char* kCheckRowsName = "self_check.safetensors";
inline constexpr const char* kProbeName = "probe.json";

// Rows of the model, after RoPE, on which engines compare their kernels with the reference before they serve. The
// toolchain writes them and never reads them.
struct CheckRows {
  struct Layer {
    std::int64_t layer = 0;
    at::Tensor q;     // [m, Hq, d] BF16, of the last m positions
    at::Tensor k, v;  // [n, Hkv, d] BF16; with latent attention v is undefined
  };
  std::vector<std::int64_t> positions;  // [n] ascending, in their sequences
  std::vector<Layer> layers;            // empty: none
};

struct Bundle {
  std::string method;               // oscar | hadamard | identity | published | ...
  std::string scope;                // layer | head
  std::string model_fingerprint;    // of the model it was fitted on; empty: unknown (published files)
  Json model = Json::object();      // name, architecture, layers, query_heads, kv_heads, head_dim, hidden; for people
  CacheWindows windows;             // sink and recent; flush stays 1
  std::string encoder = "minmax";   // minmax | search
  std::int64_t quant_group = 0;     // quantization group in channels; 0: one group per head
  std::int64_t hadamard_block = 0;  // largest power of two that divides d
  float global_key_clip = 0, global_value_clip = 0;  // the one pair that the published format can hold
  std::vector<LayerTransform> layers;                // ascending layer ids
  Json provenance = Json::object();                  // statistics file, prompt set, options, tool version
  Json fit_report = Json::object();                  // per layer: captured energy, predicted errors
  Json calibration_hashes = Json::array();           // of the calibration text, in its own file; may be empty
  CheckRows check_rows;                              // in their own file; load_bundle() leaves them empty
  Json probe;                                        // of kProbeName, likewise; null: none
  std::vector<AddedCheckpoint> checkpoints;          // that it may serve beside its own; save_bundle() leaves them out

  // True for latent attention (MLA): keys and values of a layer are the same rows. Files hold the key side, and in
  // memory the value side is as_value_side() of it.
  bool latent() const { return model.contains("attention"); }
  // Then also the BF16 channels beside a row, which no code stores; else 0.
  std::int64_t rope_dim() const { return latent() ? model.at("rope_dim").get<std::int64_t>() : 0; }
};

// Writes the directory atomically (built beside its target and renamed). UsageError if it exists and overwrite is
// false, or if overwrite would replace a directory that is not a bundle. Equal bundles give byte-identical files.
void save_bundle(const Bundle& bundle, const fs::path& directory, bool overwrite);

// Reads a bundle and validates structure, versions, sizes and the sha256 of each file, and with check_numbers runs
// check_bundle(). InputError on any fault. An edited or missing README.md only gives a warning: it is text for people.
Bundle load_bundle(const fs::path& directory, bool check_numbers = true);

// Checks finiteness, orthogonality (max |M M^T - I| <= 1e-4; other transforms: forward and inverse cancel), shapes and
// clips, for K and V. Empty if sound, else one sentence per fault.
std::vector<std::string> check_bundle(const Bundle& bundle);

// The largest distance in tokens between a query and an earlier key in the calibration; 0: the bundle does not record
// it.
std::int64_t longest_distance(const Bundle& bundle);

// Checks that the bundle belongs to this model: layers, KV heads, head size, latent attention, and the fingerprint if
// the bundle has one (Checkpoint::fingerprint): its own or that of an added checkpoint. A layer may be missing if
// the bundle lists it as left out and its windows hold all tokens that a query of the layer sees. Empty if it belongs,
// else one sentence per difference.
std::vector<std::string> check_bundle_model(const Bundle& bundle, const ModelConfig& model,
                                            const std::string& fingerprint);

}  // namespace oscar
