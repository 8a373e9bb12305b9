#include "export/writers.h"

#include <ATen/ATen.h>

#include <cstring>

#include "base/errors.h"
#include "bundle/manifest.h"
#include "export/bundle_copy.h"
#include "export/export_card.h"
#include "export/rotation_pt.h"

namespace oscar {
namespace {

RotationArray array_of(const at::Tensor& tensor) {
  const at::Tensor data = tensor.to(at::kFloat).contiguous();
  RotationArray array;
  array.shape = data.sizes().vec();
  const float* begin = data.const_data_ptr<float>();
  array.values.assign(begin, begin + data.numel());
  return array;
}

// The objective in the spelling of published files.
std::string objective_of(const Bundle& bundle, bool key, int version) {
  if (version == 3) return "oscar2_" + bundle.method;
  const MethodRow* method = find_method(bundle.method);
  if (method == nullptr) return bundle.method;
  const std::string& name = version == 2 ? method->head_objective
                            : key        ? method->key_objective
                                         : method->value_objective;
  return name.empty() ? bundle.method : name;
}

// Version 3: query side, key mean and output side if the transform has them; equal for every layer.
void add_general(RotationLayer& out, const SideTransform& side, bool key) {
  const auto shaped = [&](const at::Tensor& t) { return array_of(side.forward.size(0) == 1 ? t[0] : t); };
  out.rotation = shaped(side.forward);
  if (!side.orthogonal()) (key ? out.q_rotation : out.o_rotation) = shaped(key ? side.query_side : side.inverse);
  if (key && side.mean.defined()) out.k_mean = array_of(side.mean);
}

RotationFile rotation_file(const Bundle& bundle, bool key, int version, const Json& provenance) {
  const bool version2 = version == 2;
  RotationFile file;
  file.format_version = version;
  file.objective = objective_of(bundle, key, version);
  file.source_grouping = version2 ? "per_kv_head" : (version == 3 && per_head(bundle) ? "head" : "layer");
  if (version == 3) {
    const SideTransform& first = key ? bundle.layers.front().key : bundle.layers.front().value;
    file.extra["transform"] = {
        {"side", key ? "key" : "value"}, {"centered", key && first.mean.defined()}, {"orthogonal", first.orthogonal()}};
  }
  file.extra["calibration"] = provenance;
  for (const LayerTransform& layer : bundle.layers) {
    const SideTransform& side = key ? layer.key : layer.value;
    RotationLayer out;
    out.layer = layer.layer;
    if (version == 3) {
      add_general(out, side, key);
    } else if (version2) {
      out.rotation = array_of(side.forward.expand({layer.kv_heads, layer.head_dim, layer.head_dim}));
    } else {
      out.rotation = array_of(side.forward[0]);
      // The published tools' data-free files store ones.
      out.eigenvalues = array_of(side.eigenvalues.defined() ? side.eigenvalues[0] : at::ones({layer.head_dim}));
    }
    file.layers.push_back(std::move(out));
  }
  return file;
}

bool same_bits(const RotationArray& a, const RotationArray& b) {
  if (a.shape != b.shape || a.values.size() != b.values.size()) return false;
  // An absent array has no address to compare.
  return a.values.empty() || std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
}

void read_back(const fs::path& path, const RotationFile& written) {
  const RotationFile read = read_rotation_pt(path);
  bool same = read.layers.size() == written.layers.size() && read.objective == written.objective &&
              read.format_version == written.format_version && read.extra == written.extra;
  for (std::size_t i = 0; same && i < read.layers.size(); ++i) {
    same = read.layers[i].layer == written.layers[i].layer &&
           same_bits(read.layers[i].rotation, written.layers[i].rotation) &&
           same_bits(read.layers[i].eigenvalues, written.layers[i].eigenvalues) &&
           same_bits(read.layers[i].q_rotation, written.layers[i].q_rotation) &&
           same_bits(read.layers[i].k_mean, written.layers[i].k_mean) &&
           same_bits(read.layers[i].o_rotation, written.layers[i].o_rotation);
  }
  if (!same) {
    throw EnvironmentError(path.filename().string() + ": what was read back differs from what was written; " +
                           "check the disk and export again");
  }
}

Json provenance_of(const Bundle& bundle, const ExportOptions& options) {
  Json provenance;
  provenance["tool"] = options.tool_version;
  provenance["method"] = bundle.method;
  provenance["scope"] = bundle.scope;
  provenance["model"] = bundle.model;
  provenance["model_fingerprint"] = bundle.model_fingerprint;
  provenance["post_rope"] = true;
  provenance["accumulator_dtype"] = "float64";
  provenance["windows"] = {{"sink", bundle.windows.sink}, {"recent", bundle.windows.recent}};
  provenance["clip_ratio"] = {{"key", json_float(bundle.global_key_clip)},
                              {"value", json_float(bundle.global_value_clip)}};
  provenance["group"] = bundle.quant_group;
  provenance["fit"] = bundle.provenance;
  return provenance;
}

}  // namespace

std::string branch_plan(const ServedForm& form, const ExportOptions&) {
  return "format " + form.format + " of " + std::to_string(form.bundle.layers.size()) + " layers";
}

std::vector<std::string> write_branch(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                      const ExportOptions& options) {
  const Bundle& bundle = form.bundle;
  const int version = format.version;
  ExportCard card{.format = form.format, .version = version, .changes = form.changes};
  card.key_file = version == 2 ? "k_perhead.pt" : "k_rotation_" + objective_of(bundle, true, version) + ".pt";
  card.value_file = version == 2 ? "v_perhead.pt" : "v_rotation_" + objective_of(bundle, false, version) + ".pt";
  card.model_path = options.model_path;

  AtomicDirectory target(directory, options.overwrite, checksummed_directory());
  const Json provenance = provenance_of(bundle, options);
  for (const bool key : {true, false}) {
    const RotationFile file = rotation_file(bundle, key, version, provenance);
    const std::string name = key ? card.key_file : card.value_file;
    write_rotation_pt(target.path() / name, file);
    read_back(target.path() / name, file);
  }
  write_file_atomic(target.path() / kCardName, export_card(bundle, card, options.report ? &*options.report : nullptr));
  std::vector<std::string> names = write_checksums(target.path(), {card.key_file, card.value_file, kCardName});
  target.commit();
  return names;
}

}  // namespace oscar
