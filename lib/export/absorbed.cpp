#include "export/writers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "base/json_rules.h"
#include "bundle/bundle_files.h"
#include "checkpoint/families/family.h"
#include "checkpoint/shard_index.h"
#include "export/absorbed_weights.h"

namespace oscar {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kModelopt = "hf_quant_config.json";

Json raw_config(const Checkpoint& source) { return read_python_json(source.location().directory / "config.json"); }

bool has_mean(const Bundle& bundle) {
  return std::any_of(bundle.layers.begin(), bundle.layers.end(),
                     [](const LayerTransform& layer) { return layer.value.mean.defined(); });
}

// A mean needs a bias at o_proj. Llama and Qwen3 have one with attention_bias, which also adds one to q, k and v.
bool needs_new_biases(const Checkpoint& source, const Bundle& bundle) {
  return has_mean(bundle) && !source.config().output_bias;
}

Json config_with_biases(const Checkpoint& source) {
  Json config = raw_config(source);
  config["attention_bias"] = true;
  return config;
}

// Modules that are quantized in the source and written unquantized.
std::vector<std::string> plain_modules(const Checkpoint& source, const Bundle& bundle) {
  std::vector<std::string> modules;
  for (const LayerTransform& layer : bundle.layers) {
    for (const StoredWeight& weight : absorbing_weights(source, layer.layer, needs_new_biases(source, bundle))) {
      if (weight.is_plain()) continue;
      modules.push_back(weight.name.substr(0, weight.name.rfind('.')));
    }
  }
  return modules;
}

// Tensor name -> file.
std::map<std::string, std::string> weight_files(const Checkpoint& source) {
  const fs::path& directory = source.location().directory;
  std::map<std::string, std::string> files;
  if (fs::exists(directory / kSingle)) {
    for (const std::string& name : source.names()) files[name] = kSingle;
    return files;
  }
  files = parse_shard_index(read_file(directory / kIndex, std::uint64_t{128} << 20), (directory / kIndex).string());
  std::erase_if(files, [&](const auto& entry) { return source.find(entry.first) == nullptr; });
  for (const std::string& name : source.names()) {
    if (files.contains(name)) continue;
    throw InputError((directory / kIndex).string() + ": does not name the tensor " + quote_name(name) +
                     " that a shard holds, and the format absorbed writes an index of the same names; save the model "
                     "again with transformers");
  }
  return files;
}

// An untrusted checkpoint may contain links to any file that the user can read, and the new checkpoint is meant to be
// shared. InputError for a link that leads out of the checkpoint. In the Hugging Face cache, all files of
// models--ORG--NAME/snapshots/COMMIT are links to the blobs of that repository.
void require_inside(const fs::path& directory, const fs::path& file) {
  std::error_code ec;
  const fs::path root = fs::canonical(directory, ec), real = fs::canonical(file, ec);
  const auto below = [&real](const fs::path& folder) {
    return std::mismatch(folder.begin(), folder.end(), real.begin(), real.end()).first == folder.end();
  };
  const fs::path snapshots = root.parent_path(), repository = snapshots.parent_path();
  const bool hub = snapshots.filename() == "snapshots" && repository.filename().string().starts_with("models--");
  if (!ec && (below(root) || (hub && below(repository / "blobs")))) return;
  throw InputError(file.string() + ": is a link that leads out of the checkpoint" +
                   (ec ? std::string() : " to " + real.string()) +
                   ", so its content is not copied; put the file itself there, or remove the link");
}

void stop_if_interrupted() {
  if (interrupt_requested()) throw InterruptedError("interrupted; nothing was written, run the same command again");
}

bool is_weight_file(const fs::path& path) {
  static const std::set<std::string> endings = {".safetensors", ".bin",     ".pt",   ".pth", ".gguf",
                                                ".h5",          ".msgpack", ".onnx", ".ot"};
  return endings.contains(path.extension().string()) || path.filename().string().ends_with(".index.json");
}

// As the other files, not with the mode of the source.
void copy_whole(const fs::path& from, const fs::path& to) {
  const MappedFile file(from);
  AtomicFile out(to);
  out.write(std::array{file.bytes()});
  out.commit();
}

at::Tensor stored(const at::Tensor& value, DType dtype) {
  return value.to(dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat).contiguous();
}

// Writes the source's file `name` with the changed and new tensors of `changed`, and without the `dropped` ones.
void write_shard(const Checkpoint& source, const std::string& name, const std::vector<const NewTensor*>& changed,
                 const std::set<std::string>& dropped, DType dtype, const fs::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(source.location().directory / name);
  std::vector<TensorView> views;
  std::set<std::string> replaced = dropped;
  std::vector<at::Tensor> alive;
  for (const NewTensor* tensor : changed) {
    alive.push_back(stored(tensor->value, dtype));
    TensorView view{tensor->name, dtype, tensor->value.sizes().vec(), {}};
    view.data = {static_cast<const std::byte*>(alive.back().const_data_ptr()), alive.back().nbytes()};
    views.push_back(view);
    replaced.insert(tensor->name);
  }
  for (const TensorView& view : file.tensors()) {
    if (!replaced.contains(view.name)) views.push_back(view);
  }
  write_safetensors(path, std::move(views), file.metadata());
}

// Writes shard by shard. A layer's new tensors are computed for each shard that contains some of them. The last shard's
// tensors are kept for the next one, because a layer may span both.
class Writer {
 public:
  // modules: plain_modules().
  Writer(const Checkpoint& source, const Bundle& bundle, const std::vector<std::string>& modules,
         const fs::path& directory, DType dtype)
      : source_(source),
        directory_(directory),
        dtype_(dtype),
        new_biases_(needs_new_biases(source, bundle)),
        files_(weight_files(source)) {
    for (const LayerTransform& layer : bundle.layers) layers_.push_back(&layer);
    const Family family = family_of(source);
    std::set<std::string> biases;
    for (const LayerTransform& layer : bundle.layers) {
      for (const std::string* name : {&family.q_bias, &family.k_bias, &family.v_bias, &family.o_bias}) {
        if (!name->empty()) biases.insert(family.layer_tensor(layer.layer, *name));
      }
    }
    for (const std::string& module : modules) drop_quantized(module + ".", biases);
  }

  // Returns the file names.
  std::set<std::string> write() {
    std::map<std::string, std::set<std::size_t>> shards;
    for (const auto& [tensor, file] : files_) shards[file];
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (const StoredWeight& weight : absorbing_weights(source_, layers_[i]->layer, new_biases_)) {
        shards.at(files_.at(weight.codes->name)).insert(i);
      }
    }
    std::set<std::string> with_dropped;
    for (const std::string& name : dropped_) with_dropped.insert(files_.at(name));
    std::set<std::string> names;
    for (const auto& [file, of_layers] : shards)
      require_inside(source_.location().directory, source_.location().directory / file);
    for (const auto& [file, of_layers] : shards) {
      stop_if_interrupted();
      names.insert(file);
      fs::create_directories((directory_ / file).parent_path());
      if (of_layers.empty() && !with_dropped.contains(file)) {
        copy_whole(source_.location().directory / file, directory_ / file);
        continue;
      }
      std::vector<const NewTensor*> changed;
      for (const std::size_t i : of_layers) {
        for (const NewTensor& tensor : tensors(i)) {
          if (files_.at(tensor.sibling) == file) changed.push_back(&tensor);
        }
      }
      write_shard(source_, file, changed, dropped_, dtype_, directory_ / file);
      for (const NewTensor* tensor : changed) added_[tensor->name] = file;
      const auto& kept = of_layers;  // C++17 lambdas cannot capture structured bindings
      std::erase_if(made_, [&kept](const auto& made) { return !kept.contains(made.first); });
    }
    if (fs::exists(source_.location().directory / kSingle)) return names;
    for (const std::string& name : dropped_) files_.erase(name);
    for (const auto& [tensor, file] : added_) files_[tensor] = file;
    std::uint64_t bytes = 0;
    for (const std::string& file : names) {
      const SafetensorsFile written = SafetensorsFile::open(directory_ / file);
      for (const TensorView& view : written.tensors()) bytes += view.data.size();
    }
    write_file_atomic(directory_ / kIndex,
                      dump_json(Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", files_}}));
    names.insert(kIndex);
    return names;
  }

 private:
  // Drops everything that a quantized module stores: codes, scales, zero points, scales of activations, and the zero
  // bias that some quantizers write. Keeps biases of the architecture.
  void drop_quantized(const std::string& prefix, const std::set<std::string>& biases) {
    for (auto at = files_.lower_bound(prefix); at != files_.end() && at->first.starts_with(prefix); ++at) {
      if (!biases.contains(at->first)) dropped_.insert(at->first);
    }
  }

  const std::vector<NewTensor>& tensors(std::size_t i) {
    const auto found = made_.find(i);
    if (found != made_.end()) return found->second;
    return made_[i] = absorb_layer(source_, *layers_[i], new_biases_);
  }

  const Checkpoint& source_;
  fs::path directory_;
  DType dtype_;
  bool new_biases_;
  std::map<std::string, std::string> files_, added_;
  std::set<std::string> dropped_;  // source tensors that are not written
  std::vector<const LayerTransform*> layers_;
  std::map<std::size_t, std::vector<NewTensor>> made_;
};

// The bundle for the new checkpoint: same keys, but values arrive transformed.
Bundle remaining_bundle(const Bundle& bundle, const std::string& fingerprint) {
  Bundle rest = bundle;
  rest.model_fingerprint = fingerprint;
  rest.calibration_hashes = {};  // exports are shared
  for (LayerTransform& layer : rest.layers) {
    SideTransform& value = layer.value;
    value.forward = at::eye(layer.head_dim, at::kFloat).expand(value.forward.sizes()).contiguous();
    value.inverse = at::Tensor();
    value.mean = at::Tensor();
  }
  rest.provenance["absorbed"] = {{"value_transform", "inside the checkpoint"}, {"fitted_on", bundle.model_fingerprint}};
  return rest;
}

// Tokenizer and other files to copy unchanged. InputError for links that lead out of the checkpoint.
std::vector<fs::path> other_files(const fs::path& directory) {
  std::vector<fs::path> files;
  require_inside(directory, directory / "config.json");
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    std::error_code ec;
    if (!entry.is_regular_file(ec) || is_weight_file(entry.path()) || name == "config.json" || name == kAbsorbedName) {
      continue;
    }
    require_inside(directory, entry.path());
    files.push_back(entry.path());
  }
  return files;
}

// The files listed in the record of an absorbed checkpoint, and the files of its bundle.
std::set<std::string> recorded_files(const fs::path& directory) {
  std::set<std::string> names;
  try {
    const Json record = read_json(directory / kAbsorbedName, std::uint64_t{64} << 20);
    for (const auto& item : json_object(record, "sha256", kAbsorbedName).items()) names.insert(item.key());
  } catch (const InputError&) {
    return names;  // every file in the directory then counts as foreign
  }
  const std::string folder = kAbsorbedBundle;
  for (const std::string& name : bundle_directory().own_files(directory / folder)) names.insert(folder + "/" + name);
  return names;
}

}  // namespace

void check_absorb(const ExportFormat&, const Checkpoint& source, const Bundle& bundle) {
  const auto faults = check_bundle_model(bundle, source.config(), source.fingerprint());
  if (!faults.empty()) throw InputError("the bundle does not belong to the model: " + faults.front());
  if (!family_of(source).qkv.empty()) {
    throw InputError("the format absorbed changes only v_proj, which " + source.config().architecture +
                     " stores in one tensor with q and k; serve the bundle in another format");
  }
  if (source.config().output_gate) {
    throw InputError("the format absorbed leaves attention's outputs in another basis until o_proj, but " +
                     source.config().architecture +
                     " multiplies them by a gate before it, channel by channel; serve the bundle in another format");
  }
  if (source.config().unit_v_norm) {
    throw InputError("the format absorbed changes v_proj, but " + source.config().architecture +
                     " normalizes values after it, and may project keys with it; serve the bundle in another format");
  }
  if (source.renames()) {
    throw InputError("the format absorbed keeps the names of tensors, and those of " +
                     source.location().directory.string() +
                     " lack the prefix 'model.'; save the model again with transformers");
  }
  if (!needs_new_biases(source, bundle)) return;
  if (source.config().text_tower || !parse_model_config(config_with_biases(source), "config.json").output_bias) {
    throw InputError("the bundle has value means, which need a bias at o_proj, and " + source.config().architecture +
                     " has none; fit with --center key");
  }
}

std::string absorbed_plan(const ServedForm& form, const ExportOptions& options) {
  return std::to_string(options.model->names().size()) + " tensors, value projections and biases of " +
         std::to_string(form.bundle.layers.size()) + " layers changed,";
}

std::vector<std::string> write_absorbed(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                        const ExportOptions& options) {
  const Checkpoint& source = *options.model;
  const Bundle& bundle = form.bundle;
  check_absorb(format, source, bundle);
  AtomicDirectory target(directory, options.overwrite, {kAbsorbedName, recorded_files});
  const std::string fingerprint = source.fingerprint();
  const std::vector<std::string> modules = plain_modules(source, bundle);
  // Engines compute in BF16 beside quantized modules. Without such modules, F32 is lossless.
  const DType dtype = options.dtype.value_or(modules.empty() ? DType::kF32 : DType::kBF16);
  const std::vector<fs::path> others = other_files(source.location().directory);
  std::set<std::string> names = Writer(source, bundle, modules, target.path(), dtype).write();
  for (const fs::path& file : others) {
    copy_whole(file, target.path() / file.filename());
    names.insert(file.filename().string());
  }
  Json config = needs_new_biases(source, bundle) ? config_with_biases(source) : raw_config(source);
  add_plain_modules(config, modules);
  if (fs::exists(target.path() / kModelopt) && !modules.empty()) {
    Json modelopt = read_python_json(target.path() / kModelopt);
    add_plain_modules_modelopt(modelopt, modules);
    write_file_atomic(target.path() / kModelopt, dump_json(modelopt));
  }
  write_file_atomic(target.path() / "config.json", dump_json(config));
  names.insert("config.json");

  // Opening the result also checks it.
  const Checkpoint written = Checkpoint::open({target.path(), source.location().name, ""});
  save_bundle(remaining_bundle(bundle, written.fingerprint()), target.path() / kAbsorbedBundle, false);
  Json hashes = Json::object();
  for (const std::string& name : names) hashes[name] = sha256_file(target.path() / name);
  write_file_atomic(target.path() / kAbsorbedName,
                    dump_json(Json{{"format_version", 1},
                                   {"tool", options.tool_version},
                                   {"method", bundle.method},
                                   {"source", {{"name", source.location().name}, {"fingerprint", fingerprint}}},
                                   {"fingerprint", written.fingerprint()},
                                   {"dtype", dtype_name(dtype)},
                                   {"new_biases", needs_new_biases(source, bundle)},
                                   {"bundle", kAbsorbedBundle},
                                   {"sha256", hashes}}));
  target.commit();
  names.insert(kAbsorbedName);
  names.insert(std::string(kAbsorbedBundle) + "/");
  return {names.begin(), names.end()};
}

}  // namespace oscar
