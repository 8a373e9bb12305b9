#include "bundle/sglang_export.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>

#include "base/errors.h"
#include "base/hash.h"
#include "bundle/atomic_directory.h"
#include "bundle/export_card.h"
#include "bundle/rotation_pt.h"

namespace oscar {
namespace {

constexpr const char* kChecksumsName = "SHA256SUMS";
// Published: the window sizes are counted in quantisation pages of 8 tokens.
constexpr std::int64_t kWindowStep = 8;

bool per_head(const Bundle& bundle) {
  return std::any_of(bundle.layers.begin(), bundle.layers.end(), [](const LayerTransform& layer) {
    return layer.key.forward.size(0) > 1 || layer.value.forward.size(0) > 1;
  });
}

RotationArray array_of(const at::Tensor& tensor) {
  const at::Tensor data = tensor.to(at::kFloat).contiguous();
  RotationArray array;
  array.shape = data.sizes().vec();
  const float* begin = data.const_data_ptr<float>();
  array.values.assign(begin, begin + data.numel());
  return array;
}

int version_of(const std::string& format) {
  if (format == "sglang-v3") return 3;
  return format == "sglang-v2" ? 2 : 1;
}

// The objective as the published files spell it.
std::string objective_of(const Bundle& bundle, bool key, int version) {
  if (version == 3) return "oscar2_" + bundle.method;
  if (bundle.method != "oscar") return bundle.method;
  if (version == 2) return "cov_eig_hadamard_perhead";
  return key ? "qqt_r_h_pbr" : "sst_r_h_pbr";
}

// Version 3: query side, key mean and output side where the transform has them; the same in every layer.
void add_general(RotationLayer& out, const SideTransform& side, bool key) {
  const auto shaped = [&](const at::Tensor& t) { return array_of(side.forward.size(0) == 1 ? t[0] : t); };
  out.rotation = shaped(side.forward);
  if (!side.orthogonal()) (key ? out.q_rotation : out.o_rotation) = shaped(side.inverse_or_query);
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
      // The data-free files of the published tools store ones.
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
  provenance["clip_ratio"] = {{"key", bundle.global_key_clip}, {"value", bundle.global_value_clip}};
  provenance["fit"] = bundle.provenance;
  return provenance;
}

void check_report(const Bundle& bundle, const ExportOptions& options) {
  if (!options.report) return;
  const std::string& where = options.report_name;
  const Json& model = json_object(*options.report, "model", where);
  const std::string fingerprint = json_string(model, "fingerprint", where, "");
  if (!bundle.model_fingerprint.empty() && fingerprint != bundle.model_fingerprint) {
    throw InputError(where + ": is the report of another model (fingerprint " + fingerprint + ", the bundle has " +
                     bundle.model_fingerprint + ")");
  }
}

// What a format cannot carry, with the nearest way out.
void check_layer(const LayerTransform& layer, const std::string& name, const LayerTransform& first,
                 const std::string& format) {
  if (layer.key.blocks() || layer.value.blocks()) {
    throw InputError(name + " of the bundle has block widths, which no format of the engine can carry; fit with " +
                     "--method balanced --center key and export it as sglang-v3");
  }
  if (layer.key.rotated_mean) {
    throw InputError(name + " of the bundle is centred by the mean of keys before RoPE, which format " + format +
                     " cannot carry: fit again with --center key");
  }
  const bool general = !layer.key.orthogonal() || !layer.value.orthogonal() || layer.key.mean.defined();
  if (format != "sglang-v3" && (general || layer.value.mean.defined())) {
    throw InputError(name + " of the bundle has a mean or a transform that is not orthogonal, which format " + format +
                     " cannot carry; export it as sglang-v3, or fit with --method oscar");
  }
  if (layer.value.mean.defined()) {
    throw InputError(name + " of the bundle has a value mean, which format " + format +
                     " cannot carry; fit with --center key");
  }
  if (layer.key.orthogonal() != first.key.orthogonal() || layer.value.orthogonal() != first.value.orthogonal() ||
      layer.key.mean.defined() != first.key.mean.defined()) {
    throw InputError(name + " of the bundle has another kind of transform than the first layer, which format " +
                     format + " cannot carry; fit all layers with one method");
  }
}

// The files that SHA256SUMS names: 64 digits, two spaces, the name.
std::set<std::string> listed_files(const fs::path& directory) {
  std::set<std::string> names;
  std::error_code ec;
  if (!fs::is_regular_file(directory / kChecksumsName, ec)) return names;
  std::istringstream lines(read_file(directory / kChecksumsName, 1 << 20));
  constexpr std::size_t kName = 66;
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > kName) names.insert(line.substr(kName));
  }
  return names;
}

}  // namespace

std::vector<std::string> export_formats() { return {"sglang", "sglang-v2", "sglang-v3"}; }

void check_export(const Bundle& bundle, const ExportOptions& options) {
  const std::vector<std::string> formats = export_formats();
  if (std::find(formats.begin(), formats.end(), options.format) == formats.end()) {
    std::string list;
    for (const std::string& name : formats) list += (list.empty() ? "" : ", ") + name;
    throw UsageError("--format '" + options.format + "' is not one that this version writes; it writes " + list +
                     ", absorbed");
  }
  for (const LayerTransform& layer : bundle.layers) {
    const std::string name = "layer " + std::to_string(layer.layer);
    check_layer(layer, name, bundle.layers.front(), options.format);
    if ((layer.head_dim & (layer.head_dim - 1)) != 0) {
      throw InputError(name + " of the bundle has head_dim " + std::to_string(layer.head_dim) + "; engines that load " +
                       options.format + " need a power of two");
    }
  }
  if (options.format == "sglang" && per_head(bundle)) {
    throw InputError(
        "the bundle has one rotation for each KV head, which format sglang cannot carry; export it as sglang-v2, or "
        "fit with --scope layer");
  }
  for (const std::int64_t window : {bundle.windows.sink, bundle.windows.recent}) {
    if (window % kWindowStep != 0) {
      throw InputError("the bundle has a BF16 window of " + std::to_string(window) + " tokens; engines that load " +
                       options.format + " need multiples of 8");
    }
  }
  check_report(bundle, options);
}

std::vector<std::string> export_bundle(const Bundle& bundle, const fs::path& directory, const ExportOptions& options) {
  check_export(bundle, options);
  const int version = version_of(options.format);
  ExportCard card{.format = options.format};
  const std::string suffix = version == 3 ? "oscar2_" + bundle.method : (bundle.method == "oscar" ? "" : bundle.method);
  card.key_file = version == 2 ? "k_perhead.pt" : "k_rotation_" + (suffix.empty() ? "qqt_r_h_pbr" : suffix) + ".pt";
  card.value_file = version == 2 ? "v_perhead.pt" : "v_rotation_" + (suffix.empty() ? "sst_r_h_pbr" : suffix) + ".pt";

  AtomicDirectory target(directory, options.overwrite, {kChecksumsName, listed_files});
  const Json provenance = provenance_of(bundle, options);
  std::string checksums;
  const auto add_checksum = [&](const std::string& name) {
    checksums += sha256_file(target.path() / name) + "  " + name + "\n";
  };
  for (const bool key : {true, false}) {
    const RotationFile file = rotation_file(bundle, key, version, provenance);
    const std::string name = key ? card.key_file : card.value_file;
    write_rotation_pt(target.path() / name, file);
    read_back(target.path() / name, file);
    add_checksum(name);
  }
  write_file_atomic(target.path() / kCardName, export_card(bundle, card, options.report ? &*options.report : nullptr));
  add_checksum(kCardName);
  write_file_atomic(target.path() / kChecksumsName, checksums);
  target.commit();
  return {card.key_file, card.value_file, kCardName, kChecksumsName};
}

}  // namespace oscar
