#include "export/published.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/errors.h"
#include "export/export_format.h"
#include "registry/registry.h"
#include "transform/compose.h"

namespace oscar {
namespace {

enum class Objective { kKey, kValue, kEither };

// Objective names start with the fitted moment: qqt and ktk are for keys, sst and vtv for values.
Objective objective_side(const std::string& objective) {
  const auto starts = [&](const char* prefix) { return objective.rfind(prefix, 0) == 0; };
  if (starts("qqt") || starts("ktk")) return Objective::kKey;
  if (starts("sst") || starts("vtv")) return Objective::kValue;
  return Objective::kEither;  // hadamard, per-head files, bare tensors
}

// [n] or [H, n] or [H, n, n] -> a tensor with a leading head dimension.
at::Tensor tensor_of(const RotationArray& array, std::size_t rank) {
  std::vector<std::int64_t> shape = array.shape;
  if (shape.size() < rank) shape.insert(shape.begin(), 1);
  at::Tensor tensor = at::empty(shape, at::kFloat);
  std::memcpy(tensor.data_ptr<float>(), array.values.data(), array.values.size() * sizeof(float));
  return tensor;
}

SideTransform side_of(const RotationLayer& layer, bool key) {
  SideTransform side;
  side.forward = tensor_of(layer.rotation, 3);
  const RotationArray& other = key ? layer.q_rotation : layer.o_rotation;
  if (!other.empty()) (key ? side.query_side : side.inverse) = tensor_of(other, 3);
  if (key && !layer.k_mean.empty()) side.mean = tensor_of(layer.k_mean, 2);
  if (!layer.eigenvalues.empty()) side.eigenvalues = tensor_of(layer.eigenvalues, 2);
  side.clip = {0.0f};
  return side;
}

// The values that oscar-export recorded beside the matrices. Empty members: not in the file.
struct Record {
  std::string fingerprint;
  std::optional<float> key_clip, value_clip;
  std::optional<std::int64_t> sink, recent, group;
  bool operator==(const Record&) const = default;
};

float recorded_ratio(const Json& clip, const char* side, const std::string& where) {
  const double rho = json_number(clip, side, where);
  if (!(rho >= 0.0 && rho <= 1.0)) {
    throw InputError(where + ": '" + side + "' is " + clip.at(side).dump() + ", expected a clip ratio from 0 to 1");
  }
  return static_cast<float>(rho);
}

std::int64_t recorded_count(const Json& object, const char* key, const std::string& where) {
  const std::int64_t count = json_int(object, key, where);
  if (count < 0 || count > std::int64_t{1} << 30) {
    throw InputError(where + ": '" + key + "' is " + std::to_string(count) +
                     ", expected a number of tokens or channels");
  }
  return count;
}

// Other programs also write a `calibration`. One from oscar-export has clip ratios, and must then be valid.
Record record_of(const RotationFile& file, const std::string& name) {
  Record record;
  if (!file.extra.contains("calibration") || !file.extra["calibration"].is_object()) return record;
  const Json& calibration = file.extra["calibration"];
  const std::string where = name + ", calibration";
  if (!calibration.contains("clip_ratio")) return record;
  if (calibration.contains("model_fingerprint")) {
    record.fingerprint = json_string(calibration, "model_fingerprint", where);
  }
  const Json& clip = json_object(calibration, "clip_ratio", where);
  record.key_clip = recorded_ratio(clip, "key", where + ".clip_ratio");
  record.value_clip = recorded_ratio(clip, "value", where + ".clip_ratio");
  if (calibration.contains("windows")) {
    const Json& windows = json_object(calibration, "windows", where);
    record.sink = recorded_count(windows, "sink", where + ".windows");
    record.recent = recorded_count(windows, "recent", where + ".windows");
  }
  if (calibration.contains("group")) record.group = recorded_count(calibration, "group", where);
  return record;
}

void use_record(const Record& record, Bundle& bundle) {
  bundle.model_fingerprint = record.fingerprint;
  if (record.sink) bundle.windows = {*record.sink, *record.recent};
  if (record.group) bundle.quant_group = *record.group;
  if (!record.key_clip) return;
  bundle.global_key_clip = *record.key_clip;
  bundle.global_value_clip = *record.value_clip;
  for (LayerTransform& layer : bundle.layers) {
    layer.key.clip = {*record.key_clip};
    layer.value.clip = {*record.value_clip};
  }
  bundle.provenance["recorded_clip"] = true;
}

std::string ids_of(const RotationFile& file) {
  const std::int64_t first = file.layers.front().layer, last = file.layers.back().layer;
  return std::to_string(file.layers.size()) + " layers from " + std::to_string(first) + " to " + std::to_string(last);
}

}  // namespace

Bundle bundle_from_rotations(const RotationFile& key, const std::string& key_name, const RotationFile& value,
                             const std::string& value_name) {
  if (objective_side(key.objective) == Objective::kValue) {
    throw InputError(key_name + ": its objective '" + key.objective +
                     "' is one of values; it was given as the key file, are the two files swapped?");
  }
  if (objective_side(value.objective) == Objective::kKey) {
    throw InputError(value_name + ": its objective '" + value.objective +
                     "' is one of keys; it was given as the value file, are the two files swapped?");
  }
  if (key.layers.empty()) throw InputError(key_name + ": has no layers");
  if (value.layers.empty()) throw InputError(value_name + ": has no layers");
  const bool same_layers =
      std::equal(key.layers.begin(), key.layers.end(), value.layers.begin(), value.layers.end(),
                 [](const RotationLayer& a, const RotationLayer& b) { return a.layer == b.layer; });
  if (!same_layers) {
    throw InputError(value_name + ": has " + ids_of(value) + ", " + key_name + " has " + ids_of(key) +
                     "; the two do not belong together");
  }
  const Record record = record_of(key, key_name);
  if (!(record == record_of(value, value_name))) {
    throw InputError(value_name + ": records another model, other clip ratios, windows or groups than " + key_name +
                     "; the two are not of one export");
  }
  Bundle bundle{.method = kPublishedMethod, .scope = "layer"};
  for (std::size_t i = 0; i < key.layers.size(); ++i) {
    const RotationLayer& k = key.layers[i];
    const RotationLayer& v = value.layers[i];
    const std::string layer = "layer " + std::to_string(k.layer);
    if (k.head_dim() != v.head_dim()) {
      throw InputError(value_name + ": " + layer + " has head_dim " + std::to_string(v.head_dim()) + ", " + key_name +
                       " has " + std::to_string(k.head_dim()) + "; the two do not belong together");
    }
    if (k.heads() != 0 && v.heads() != 0 && k.heads() != v.heads()) {
      throw InputError(value_name + ": " + layer + " has " + std::to_string(v.heads()) + " KV heads, " + key_name +
                       " has " + std::to_string(k.heads()) + "; the two do not belong together");
    }
    LayerTransform transform{.layer = k.layer, .head_dim = k.head_dim()};
    const std::int64_t mean_heads = k.k_mean.empty() ? 0 : k.k_mean.shape.front();
    transform.kv_heads = std::max({k.heads(), v.heads(), mean_heads, std::int64_t{1}});
    if (transform.kv_heads > 1) bundle.scope = "head";
    transform.key = side_of(k, true);
    transform.value = side_of(v, false);
    bundle.layers.push_back(std::move(transform));
  }
  bundle.hadamard_block = hadamard_block(bundle.layers.front().head_dim);
  bundle.provenance["key_objective"] = key.objective;
  bundle.provenance["value_objective"] = value.objective;
  bundle.provenance["format_version"] = key.format_version;
  use_record(record, bundle);
  return bundle;
}

bool has_recorded_clip(const Bundle& bundle) { return bundle.provenance.contains("recorded_clip"); }

std::string published_format(const Bundle& bundle) {
  const std::int64_t version = bundle.provenance.at("format_version").get<std::int64_t>();
  for (const ExportFormat& format : export_formats()) {
    if (format.version == version) return format.id;
  }
  throw InputError("rotation files of format_version " + std::to_string(version) + " are of no export format; " +
                   "export the bundle again");
}

Bundle bundle_from_published(const fs::path& key_file, const fs::path& value_file) {
  return bundle_from_rotations(read_rotation_pt(key_file), key_file.string(), read_rotation_pt(value_file),
                               value_file.string());
}

}  // namespace oscar
