// Rotation files as published for serving engines: a dictionary of layers saved by torch.save. Version 1 has one matrix
// per layer, version 2 one per KV head, version 3 a separate query side and means. K and V are separate files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "torch_file/torch_pt_value.h"

namespace oscar {

// Row-major F32 numbers with their shape.
struct RotationArray {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  bool empty() const { return shape.empty(); }
};

// Optional arrays are empty if absent. A file has each of them for all layers or for none.
struct RotationLayer {
  std::int64_t layer = 0;     // global layer id
  RotationArray rotation;     // [d, d] or [Hkv, d, d] (one per KV head)
  RotationArray eigenvalues;  // [d] or [Hkv, d]
  RotationArray q_rotation;   // same shape as rotation: the query side of a transform that is not orthogonal
  RotationArray k_mean;       // [Hkv, d]
  RotationArray o_rotation;   // same shape as rotation: the output side, in V files

  std::int64_t head_dim() const { return rotation.shape.back(); }
  std::int64_t heads() const { return rotation.shape.size() == 3 ? rotation.shape[0] : 0; }  // 0: shared by all
};

struct RotationFile {
  std::int64_t format_version = 1;
  std::string objective;              // "qqt_r_h_pbr"; "bare" for files with one tensor and no dictionary
  std::string source_grouping;        // "layer", "per_kv_head", "head"
  std::vector<RotationLayer> layers;  // ascending ids, with possible gaps
  Json extra = Json::object();        // all other keys: calibration, transform, provenance
};

// Reads a .pt file, or a folder of layer_<id>.pt files with one bare [d, d] tensor each. InputError for a newer
// format_version (with its own message), missing or mixed fields, wrong shapes, NaN or infinity.
RotationFile read_rotation_pt(const fs::path& path);
RotationFile parse_rotation_pt(const PtValue& value, const std::string& where);

// Writes the published forms: version 1 (rotations [d, d], ascending eigenvalues), 2 (rotations [Hkv, d, d]) or 3
// (either, with query side, key mean and output side). InputError for content that does not fit the version.
void write_rotation_pt(const fs::path& path, const RotationFile& file);

}  // namespace oscar
