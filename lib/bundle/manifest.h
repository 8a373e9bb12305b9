// oscar_bundle.json: writes the manifest of a bundle as JSON, and reads it with every field checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "bundle/bundle.h"

namespace oscar {

// The most that a manifest may name.
inline constexpr std::int64_t kManifestLayers = 10000, kManifestHeads = 4096, kManifestHeadDim = 4096;

struct BundleFile {
  std::string sha256;
  std::uint64_t bytes = 0;
};

struct Manifest {
  Bundle bundle;               // its tensors are undefined
  std::string numbers_sha256;  // the hash in the manifest; empty in manifests of earlier versions
  std::map<std::string, BundleFile> files;
  // The tensors that rotations.safetensors must hold: shape by name.
  std::map<std::string, std::vector<std::int64_t>> tensors;
};

Json manifest_to_json(const Bundle& bundle, const std::map<std::string, BundleFile>& files);
// InputError naming `where` for anything that is missing, of a wrong type, out of range, of a newer version, or newer
// than the version that the manifest names.
Manifest manifest_from_json(const Json& json, const std::string& where);

// SHA-256 over all manifest entries that numbers depend on: method, scope, fingerprint, code, windows, Hadamard block,
// clip ratios, layers and the hashes of the other files. They are serialized as JSON with sorted keys and no spaces,
// every number as the shortest text of a double. `provenance`, `fit` and the model names are for people and do not
// count.
std::string manifest_numbers_sha256(const Json& manifest);

// "layers.3.k.forward"
std::string tensor_name(std::int64_t layer, bool key, const char* part);

// A float as the shortest decimal that reads back to it (0.96, not 0.9599999785).
Json json_float(float value);

}  // namespace oscar
