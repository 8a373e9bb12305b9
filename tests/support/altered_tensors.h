// Safetensors files with one tensor that is not what the file's reader expects: what a damaged disk or a hostile hand
// may leave in a work directory.
#pragma once

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/run_tensors.h"

namespace oscar {

struct OwnedTensor {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

// Writes the file again with its tensors changed by `change`; the metadata stay. A file of a run gets the checksum of
// its new content, as one who forges it would write.
inline void rewrite_tensors(const fs::path& path, const std::function<void(std::vector<OwnedTensor>&)>& change) {
  std::vector<OwnedTensor> tensors;
  std::map<std::string, std::string> metadata;
  {
    const SafetensorsFile file = SafetensorsFile::open(path);
    metadata = file.metadata();
    for (const TensorView& v : file.tensors()) {
      tensors.push_back({v.name, v.dtype, v.shape, {v.data.begin(), v.data.end()}});
    }
  }
  change(tensors);
  std::vector<TensorView> views;
  for (const OwnedTensor& t : tensors) views.push_back({t.name, t.dtype, t.shape, t.data});
  metadata.contains("checksum") ? save_run_tensors(path, views, metadata) : write_safetensors(path, views, metadata);
}

// The ways in which one tensor of a record can be wrong without the file being damaged as a file.
struct Alteration {
  const char* name;
  std::function<void(OwnedTensor&)> apply;
};

inline std::vector<Alteration> alterations() {
  const auto set_last = [](OwnedTensor& t, double value) {
    const std::size_t size = dtype_size(t.dtype);
    if (t.data.size() < size) return;
    if (t.dtype == DType::kF64) std::memcpy(t.data.data() + t.data.size() - size, &value, size);
    const auto single = static_cast<float>(value);
    if (t.dtype == DType::kF32) std::memcpy(t.data.data() + t.data.size() - size, &single, size);
  };
  return {{"one element", [](OwnedTensor& t) { t.shape = {1}, t.data.resize(dtype_size(t.dtype)); }},
          {"no element", [](OwnedTensor& t) { t.shape = {0}, t.data.clear(); }},
          {"a scalar", [](OwnedTensor& t) { t.shape = {}, t.data.resize(dtype_size(t.dtype)); }},
          {"one axis more", [](OwnedTensor& t) { t.shape.insert(t.shape.begin(), 1); }},
          {"another type", [](OwnedTensor& t) { t.dtype = DType::kU8, t.shape = {std::ssize(t.data)}; }},
          {"NaN", [set_last](OwnedTensor& t) { set_last(t, std::numeric_limits<double>::quiet_NaN()); }},
          {"infinity", [set_last](OwnedTensor& t) { set_last(t, std::numeric_limits<double>::infinity()); }}};
}

}  // namespace oscar
