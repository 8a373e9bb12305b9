#include "checkpoint/run_tensors.h"

#include <algorithm>

#include "base/hash.h"
#include "base/run_directory.h"

namespace oscar {
namespace {

constexpr const char *kName = "file", *kChecksum = "checksum";

std::string checksum_of(const std::vector<TensorView>& tensors, const std::map<std::string, std::string>& metadata) {
  Checksum sum;
  for (const auto& [key, value] : metadata) {
    if (key != kChecksum) sum.add(key), sum.add(value);
  }
  std::vector<const TensorView*> sorted;
  for (const TensorView& t : tensors) sorted.push_back(&t);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const TensorView* t : sorted) {
    sum.add(t->name + " " + t->type_text() + " " + t->shape_text());
    sum.add(t->data.data(), t->data.size());
  }
  return sum.hex();
}

}  // namespace

void save_run_tensors(const fs::path& path, const std::vector<TensorView>& tensors,
                      std::map<std::string, std::string> metadata) {
  metadata[kName] = path.filename().string();
  metadata[kChecksum] = checksum_of(tensors, metadata);
  write_safetensors(path, tensors, metadata);
}

SafetensorsFile open_run_tensors(const fs::path& path) {
  SafetensorsFile file = SafetensorsFile::open(path, Links::kRefuse);
  const auto said = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  if (said(kName) != path.filename()) damaged_run(path.string(), "is another file of a run");
  require_checksum(checksum_of(file.tensors(), file.metadata()), said(kChecksum), path.string());
  return file;
}

}  // namespace oscar
