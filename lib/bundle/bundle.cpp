#include "bundle/bundle.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "bundle/bundle_files.h"
#include "bundle/calibration_hashes.h"
#include "bundle/curves.h"
#include "bundle/manifest.h"
#include "bundle/model_card.h"
#include "checkpoint/safetensors.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;

TensorView view_of(const std::string& name, const at::Tensor& tensor) {
  return {.name = name,
          .dtype = tensor.scalar_type() == at::kBFloat16 ? DType::kBF16 : DType::kF32,
          .shape = tensor.sizes().vec(),
          .data = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

BundleFile describe(const fs::path& path) { return {sha256_file(path), fs::file_size(path)}; }

void write_rotations(const Bundle& bundle, const fs::path& path) {
  std::vector<at::Tensor> alive;
  std::vector<TensorView> views;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    alive.push_back(tensor.to(at::kCPU, at::kFloat).contiguous());
    views.push_back(view_of(name, alive.back()));
  };
  for (const LayerTransform& layer : bundle.layers) {
    for (const bool key : {true, false}) {
      if (!key && bundle.latent()) continue;
      const SideTransform& side = key ? layer.key : layer.value;
      add(tensor_name(layer.layer, key, "forward"), side.forward);
      add(tensor_name(layer.layer, key, "inverse_or_query"), (key ? side.query_side : side.inverse));
      add(tensor_name(layer.layer, key, "mean"), side.mean);
      add(tensor_name(layer.layer, key, "eigenvalues"), side.eigenvalues);
      add(tensor_name(layer.layer, key, "sigma"), side.sigma);
    }
  }
  write_safetensors(path, std::move(views), {{"format", "oscar-rotations"}, {"format_version", "1"}});
}

void write_check_rows(const CheckRows& rows, const fs::path& path) {
  std::vector<TensorView> views = {
      {"positions", DType::kI64, {std::ssize(rows.positions)}, std::as_bytes(std::span(rows.positions))}};
  for (const CheckRows::Layer& layer : rows.layers) {
    const std::string prefix = "layers." + std::to_string(layer.layer) + ".";
    for (const auto& [name, tensor] : {std::pair("q", &layer.q), {"k", &layer.k}, {"v", &layer.v}}) {
      if (tensor->defined()) views.push_back(view_of(prefix + name, *tensor));
    }
  }
  write_safetensors(path, std::move(views), {{"format", "oscar-self-check"}, {"format_version", "1"}});
}

// Checks sizes and hashes of the listed files before any is interpreted.
void check_files(const Manifest& manifest, const fs::path& directory) {
  for (const auto& [name, listed] : manifest.files) {
    const fs::path path = directory / name;
    std::error_code ec;
    const bool present = fs::is_regular_file(path, ec);
    if (name == kCardName) {
      if (!present || describe(path).sha256 != listed.sha256) {
        log_warning(path.string() + ": is not the model card that was written with this bundle");
      }
      continue;
    }
    if (!present && may_be_deleted(name)) continue;
    if (!present) throw InputError(path.string() + ": is missing; the manifest lists it");
    const std::uint64_t size = fs::file_size(path, ec);
    if (size != listed.bytes) {
      throw InputError(path.string() + ": has " + std::to_string(size) + " bytes, the manifest says " +
                       std::to_string(listed.bytes) + "; copy or fit the bundle again");
    }
    const std::string found = sha256_file(path);
    if (found != listed.sha256) {
      throw InputError(path.string() + ": sha256 is " + found + ", the manifest says " + listed.sha256 +
                       "; copy or fit the bundle again");
    }
  }
}

at::Tensor take(const SafetensorsFile& file, const std::string& name, const std::vector<std::int64_t>& shape) {
  const TensorView& view = file.at(name);
  if (view.dtype != DType::kF32 || view.shape != shape) {
    TensorView wanted;
    wanted.shape = shape;
    throw InputError(file.path().string() + ": " + name + " is " + view.type_text() + " " + view.shape_text() +
                     ", expected F32 " + wanted.shape_text());
  }
  at::Tensor tensor = at::empty(shape, at::kFloat);
  std::memcpy(tensor.mutable_data_ptr(), view.data.data(), view.data.size());
  return tensor;
}

void read_rotations(Manifest& manifest, const fs::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const TensorView& tensor : file.tensors()) {
    if (!manifest.tensors.contains(tensor.name)) {
      throw InputError(path.string() + ": holds the tensor '" + tensor.name + "', which the manifest does not mention");
    }
  }
  const auto optional = [&](const std::string& name) {
    const auto entry = manifest.tensors.find(name);
    return entry == manifest.tensors.end() ? at::Tensor() : take(file, name, entry->second);
  };
  for (LayerTransform& layer : manifest.bundle.layers) {
    for (const bool key : {true, false}) {
      SideTransform& side = key ? layer.key : layer.value;
      side.forward = optional(tensor_name(layer.layer, key, "forward"));
      (key ? side.query_side : side.inverse) = optional(tensor_name(layer.layer, key, "inverse_or_query"));
      side.mean = optional(tensor_name(layer.layer, key, "mean"));
      side.eigenvalues = optional(tensor_name(layer.layer, key, "eigenvalues"));
      side.sigma = optional(tensor_name(layer.layer, key, "sigma"));
    }
    if (manifest.bundle.latent()) layer.value = as_value_side(layer.key);
  }
}

void read_calibration_hashes(Manifest& manifest, const fs::path& path) {
  std::error_code ec;
  if (!manifest.files.contains(kCalibrationHashesName) || !fs::exists(path, ec)) return;
  manifest.bundle.calibration_hashes = calibration_hashes_from_json(read_json(path, kMaxManifestBytes), path.string());
}

// The files that a manifest lists; if it is unreadable, the files of every bundle.
std::set<std::string> own_files(const fs::path& directory) {
  std::set<std::string> names = {kManifestName, kRotationsName, kCardName,  kCalibrationHashesName,
                                 kCurvesName,   kCheckRowsName, kProbeName, kCheckpointsName};
  try {
    const Json manifest = read_json(directory / kManifestName, kMaxManifestBytes);
    for (const auto& item : json_object(manifest, "files", kManifestName).items()) names.insert(item.key());
  } catch (const InputError&) {
    // A damaged bundle may be replaced, too, if nothing else is beside it.
  }
  return names;
}

// Clip ratios, windows and similar numbers that were changed by hand or by another program do not match the fit. This
// check is last, so that a more specific fault is reported first.
void check_manifest_numbers(const Json& json, const Manifest& manifest, const fs::path& path) {
  if (manifest.numbers_sha256.empty() || manifest.numbers_sha256 == manifest_numbers_sha256(json)) return;
  throw InputError(path.string() +
                   ": its clip ratios, windows, code or other numbers were changed after the fit (its "
                   "numbers_sha256 does not fit them); copy or fit the bundle again");
}

// curves: null if there are none.
void save(const Bundle& bundle, const Curves* curves, const fs::path& directory, bool overwrite) {
  const std::vector<std::string> faults = check_bundle(bundle);
  if (!faults.empty()) throw NumericalError(directory.string() + ": not written, " + faults.front());
  AtomicDirectory out(directory, overwrite, bundle_directory());
  std::map<std::string, BundleFile> files;
  write_rotations(bundle, out.path() / kRotationsName);
  files[kRotationsName] = describe(out.path() / kRotationsName);
  if (curves != nullptr) {
    write_file_atomic(out.path() / kCurvesName, dump_json(curves_to_json(*curves)));
    files[kCurvesName] = describe(out.path() / kCurvesName);
  }
  write_file_atomic(out.path() / kCardName, bundle_card(bundle));
  files[kCardName] = describe(out.path() / kCardName);
  if (!bundle.calibration_hashes.empty()) {
    const fs::path path = out.path() / kCalibrationHashesName;
    write_file_atomic(path, dump_json(calibration_hashes_to_json(bundle.calibration_hashes)));
    files[kCalibrationHashesName] = describe(path);
  }
  if (!bundle.check_rows.layers.empty()) {
    write_check_rows(bundle.check_rows, out.path() / kCheckRowsName);
    files[kCheckRowsName] = describe(out.path() / kCheckRowsName);
  }
  if (!bundle.probe.is_null()) {
    write_file_atomic(out.path() / kProbeName, dump_json(bundle.probe));
    files[kProbeName] = describe(out.path() / kProbeName);
  }
  write_file_atomic(out.path() / kManifestName, dump_json(manifest_to_json(bundle, files)));
  out.commit();
}

}  // namespace

DirectoryKind bundle_directory() { return {kManifestName, own_files}; }

bool may_be_deleted(const std::string& name) {
  return name == kCalibrationHashesName || name == kCheckRowsName || name == kProbeName;
}

std::vector<fs::path> bundle_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const std::string& name : names_inside(own_files(directory))) files.push_back(directory / name);
  return files;
}

void save_bundle(const Bundle& bundle, const fs::path& directory, bool overwrite) {
  save(bundle, nullptr, directory, overwrite);
}

void save_bundle(const Bundle& bundle, const Curves& curves, const fs::path& directory, bool overwrite) {
  save(bundle, &curves, directory, overwrite);
}

Bundle load_bundle(const fs::path& directory, bool check_numbers) {
  if (!folder_exists(directory)) {
    throw InputError(directory.string() + ": is not a directory, expected a bundle written by oscar-fit");
  }
  const fs::path path = directory / kManifestName;
  if (!path_exists(path)) {
    throw InputError(directory.string() + ": holds no " + std::string(kManifestName) +
                     ", expected a bundle written by oscar-fit");
  }
  const Json json = read_json(path, kMaxManifestBytes);
  Manifest manifest = manifest_from_json(json, path.string());
  check_files(manifest, directory);
  read_rotations(manifest, directory / kRotationsName);
  read_calibration_hashes(manifest, directory / kCalibrationHashesName);
  if (check_numbers) {
    const std::vector<std::string> faults = check_bundle(manifest.bundle);
    if (!faults.empty()) {
      throw InputError(directory.string() + ": " + faults.front() +
                       (faults.size() > 1 ? " (and " + std::to_string(faults.size() - 1) + " more faults)" : ""));
    }
  }
  check_manifest_numbers(json, manifest, path);
  manifest.bundle.checkpoints = load_checkpoints(directory, manifest.numbers_sha256);
  return std::move(manifest.bundle);
}

std::int64_t longest_distance(const Bundle& bundle) {
  if (!bundle.provenance.is_object()) return 0;
  const auto found = bundle.provenance.find("longest_distance");
  if (found == bundle.provenance.end() || !found->is_number_integer()) return 0;
  return std::clamp<std::int64_t>(found->get<std::int64_t>(), 0, std::int64_t{1} << 40);
}

}  // namespace oscar
