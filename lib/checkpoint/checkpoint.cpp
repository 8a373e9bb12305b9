#include "checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "checkpoint/canonical_config.h"
#include "checkpoint/shard_index.h"

namespace oscar {
namespace {

constexpr std::uint64_t kMaxConfig = std::uint64_t{4} << 20, kMaxIndex = std::uint64_t{128} << 20;

bool present(const fs::path& path) {
  std::error_code ec;
  // A broken or cyclic link counts as present, so that opening it names the fault.
  return fs::symlink_status(path, ec).type() != fs::file_type::not_found;
}

}  // namespace

Checkpoint Checkpoint::open(const ModelLocation& location) {
  Checkpoint checkpoint;
  checkpoint.location_ = location;
  const fs::path config = location.directory / "config.json";
  const Json document = read_json(config, kMaxConfig);
  checkpoint.config_ = parse_model_config(document, config.string());
  checkpoint.canonical_config_ = canonical_config(document);

  const fs::path single = location.directory / "model.safetensors";
  const fs::path index = location.directory / "model.safetensors.index.json";
  if (present(single)) {
    checkpoint.shards_.push_back(SafetensorsFile::open(single));
    for (const TensorView& tensor : checkpoint.shards_.front().tensors()) {
      checkpoint.index_.emplace(tensor.name, &tensor);
    }
  } else if (present(index)) {
    const auto weight_map = parse_shard_index(read_file(index, kMaxIndex), index.string());
    std::set<std::string> files;
    for (const auto& [tensor, file] : weight_map) files.insert(file);
    std::map<std::string, std::size_t> shard_of;
    std::map<std::pair<dev_t, ino_t>, std::size_t> opened;
    for (const std::string& file : files) {
      if (!present(location.directory / file)) {
        throw InputError(index.string() + ": the shard " + quote_name(file) + " is missing; complete the checkpoint");
      }
      // An index may name one file in many ways ("a", "./a", links): it is mapped and read once.
      struct stat info {};
      const bool known_file = ::stat((location.directory / file).c_str(), &info) == 0;
      const auto [same, fresh] = opened.emplace(std::pair(info.st_dev, info.st_ino), checkpoint.shards_.size());
      shard_of.emplace(file, same->second);
      if (fresh || !known_file) checkpoint.shards_.push_back(SafetensorsFile::open(location.directory / file));
    }
    for (const auto& [tensor, file] : weight_map) {
      checkpoint.index_.emplace(tensor, &checkpoint.shards_[shard_of.at(file)].at(tensor));
    }
  } else {
    throw InputError(location.directory.string() +
                     ": has neither model.safetensors nor model.safetensors.index.json; weights in other formats "
                     "(pytorch_model.bin, GGUF) must be converted to safetensors first");
  }
  return checkpoint;
}

Checkpoint Checkpoint::open_index(const ModelLocation& location) {
  const fs::path index = location.directory / "model.safetensors.index.json";
  if (present(location.directory / "model.safetensors") || !present(index)) return open(location);
  const std::string text = read_file(index, kMaxIndex);
  const auto weight_map = parse_shard_index(text, index.string());
  const auto here = [&](const auto& entry) { return present(location.directory / entry.second); };
  if (std::all_of(weight_map.begin(), weight_map.end(), here)) return open(location);
  Checkpoint checkpoint;
  checkpoint.location_ = location;
  const fs::path config = location.directory / "config.json";
  const Json document = read_json(config, kMaxConfig);
  checkpoint.config_ = parse_model_config(document, config.string());
  checkpoint.canonical_config_ = canonical_config(document);
  checkpoint.bytes_of_index_ = parse_total_size(text, index.string());
  for (const auto& [tensor, file] : weight_map)
    checkpoint.names_only_.push_back({.name = tensor, .shape = {}, .data = {}});
  for (const TensorView& tensor : checkpoint.names_only_) checkpoint.index_.emplace(tensor.name, &tensor);
  return checkpoint;
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : it->second;
}

const TensorView& Checkpoint::at(std::string_view name) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) {
    throw InputError(location_.directory.string() + ": the tensor " + quote_name(name) +
                     " is missing, which the architecture " + config_.architecture + " needs");
  }
  return *tensor;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : index_) names.push_back(name);
  return names;
}

std::uint64_t Checkpoint::weight_bytes() const {
  std::uint64_t bytes = bytes_of_index_;
  for (const auto& [name, tensor] : index_) bytes += tensor->data.size();
  return bytes;
}

}  // namespace oscar
