#include "verify/work_directory.h"

#include <ATen/ATen.h>

#include <array>
#include <cstring>

#include "base/errors.h"
#include "checkpoint/safetensors.h"

namespace oscar {
namespace {

constexpr const char* kSuffix = ".safetensors";
constexpr std::array<std::pair<at::ScalarType, DType>, 5> kTypes{{{at::kDouble, DType::kF64},
                                                                  {at::kFloat, DType::kF32},
                                                                  {at::kBFloat16, DType::kBF16},
                                                                  {at::kLong, DType::kI64},
                                                                  {at::kByte, DType::kU8}}};

bool is_run_file(const std::string& name) {
  if (!name.ends_with(kSuffix)) return false;
  return name.starts_with("group-") || name.starts_with("hidden-") || name.starts_with("task-");
}

[[noreturn]] void damaged(const std::string& where, const std::string& what) {
  throw InputError(where + ": " + what + ", so the work directory is damaged; delete it to start anew");
}

at::Tensor tensor_of(const TensorView& view, const std::string& where) {
  for (const auto& [type, stored] : kTypes) {
    if (stored != view.dtype) continue;
    at::Tensor t = at::empty(view.shape, at::TensorOptions(type));
    if (!view.data.empty()) std::memcpy(t.mutable_data_ptr(), view.data.data(), view.data.size());
    return t;
  }
  damaged(where, "tensor '" + view.name + "' is " + dtype_name(view.dtype));
}

SafetensorsFile open_own(const fs::path& path, const RunDirectory& run) {
  SafetensorsFile file = SafetensorsFile::open(path);
  const auto owner = file.metadata().find("run");
  run.require_own(owner == file.metadata().end() ? "" : owner->second, path);
  return file;
}

}  // namespace

VerifyWork::VerifyWork(const fs::path& path, const Json& run, bool resume)
    : run_(path, run, resume,
           {{"model", "is of another model (its fingerprint differs)"},
            {"text", "has another text"},
            {"bundle", "judges other bundles"}},
           is_run_file) {}

std::optional<WorkRecord> VerifyWork::load(const std::string& name) const {
  const fs::path path = run_.file(name + kSuffix);
  if (!fs::exists(path)) return std::nullopt;
  const SafetensorsFile file = open_own(path, run_);
  WorkRecord record;
  for (const TensorView& view : file.tensors()) record[view.name] = tensor_of(view, path.string());
  return record;
}

at::Tensor VerifyWork::load_tensor(const std::string& name, const std::string& tensor) const {
  const fs::path path = run_.file(name + kSuffix);
  return tensor_of(open_own(path, run_).at(tensor), path.string());
}

void VerifyWork::save(const std::string& name, const WorkRecord& record) const {
  std::vector<at::Tensor> kept;
  std::vector<TensorView> views;
  for (const auto& [key, tensor] : record) {
    kept.push_back(tensor.to(at::kCPU).contiguous());
    const at::Tensor& t = kept.back();
    DType dtype = DType::kF32;
    for (const auto& [type, stored] : kTypes) {
      if (type == t.scalar_type()) dtype = stored;
    }
    views.push_back({key, dtype, t.sizes().vec(), {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()}});
  }
  write_safetensors(run_.file(name + kSuffix), views, {{"run", run_.run_id()}});
}

void VerifyWork::erase(const std::string& name) const {
  std::error_code ec;
  fs::remove(run_.file(name + kSuffix), ec);
}

const at::Tensor& record_tensor(const WorkRecord& record, const std::string& name, at::ScalarType type,
                                std::int64_t elements) {
  const auto found = record.find(name);
  if (found == record.end()) damaged("a record of the run", "tensor '" + name + "' is missing");
  const at::Tensor& t = found->second;
  if (t.scalar_type() != type || (elements >= 0 && t.numel() != elements)) {
    damaged("a record of the run", "tensor '" + name + "' has another form");
  }
  return t;
}

}  // namespace oscar
