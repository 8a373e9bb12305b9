#include "verify/verify_work.h"

#include <ATen/ATen.h>

#include <array>
#include <cstring>

#include "checkpoint/run_tensors.h"

namespace oscar {
namespace {

constexpr const char* kSuffix = ".safetensors";
constexpr std::array<std::pair<at::ScalarType, DType>, 5> kTypes{{{at::kDouble, DType::kF64},
                                                                  {at::kFloat, DType::kF32},
                                                                  {at::kBFloat16, DType::kBF16},
                                                                  {at::kLong, DType::kI64},
                                                                  {at::kByte, DType::kU8}}};

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// group-00003, task-niah-2048-prefill
bool is_run_file(const std::string& name) {
  if (!name.ends_with(kSuffix)) return false;
  const std::string_view stem = std::string_view(name).substr(0, name.size() - std::string_view(kSuffix).size());
  if (stem.starts_with("group-")) return all_digits(stem.substr(6));
  const std::size_t last = stem.rfind('-');
  if (last == std::string_view::npos) return false;
  const std::string_view end = stem.substr(last + 1), rest = stem.substr(0, last);
  if (!stem.starts_with("task-") || (end != "prefill" && end != "decode")) return false;
  const std::size_t length = rest.rfind('-');
  return length > 5 && length != std::string_view::npos && all_digits(rest.substr(length + 1));
}

at::Tensor tensor_of(const TensorView& view, const std::string& where) {
  for (const auto& [type, stored] : kTypes) {
    if (stored != view.dtype) continue;
    at::Tensor t = at::empty(view.shape, at::TensorOptions(type));
    if (!view.data.empty()) std::memcpy(t.mutable_data_ptr(), view.data.data(), view.data.size());
    return t;
  }
  damaged_run(where, "tensor '" + view.name + "' is " + view.type_text());
}

SafetensorsFile open_own(const fs::path& path, const RunDirectory& run) {
  SafetensorsFile file = open_run_tensors(path);
  const auto owner = file.metadata().find("run");
  run.require_own(owner == file.metadata().end() ? "" : owner->second, path);
  return file;
}

}  // namespace

WorkRecord work_record(const SafetensorsFile& file) {
  WorkRecord record;
  for (const TensorView& view : file.tensors()) record[view.name] = tensor_of(view, file.path().string());
  return record;
}

VerifyWork::VerifyWork(const fs::path& path, const Json& run, bool resume)
    : run_(path, run, resume,
           {{"model", "is of another model (its fingerprint differs)"},
            {"text", "has another text"},
            {"bundle", "evaluates other bundles"}},
           is_run_file) {}

fs::path VerifyWork::file(const std::string& name) const { return run_.file(name + kSuffix); }

std::optional<WorkRecord> VerifyWork::load(const std::string& name) const {
  const fs::path path = file(name);
  if (!fs::exists(path)) return std::nullopt;
  const SafetensorsFile file = open_own(path, run_);
  return work_record(file);
}

WorkRecord VerifyWork::load_tensors(const std::string& name, const std::vector<std::string>& tensors) const {
  const SafetensorsFile file = open_own(this->file(name), run_);
  WorkRecord record;
  for (const std::string& tensor : tensors) {
    const TensorView* view = file.find(tensor);
    if (view != nullptr) record[tensor] = tensor_of(*view, file.path().string());
  }
  return record;
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
  save_run_tensors(file(name), views, {{"run", run_.run_id()}});
}

const at::Tensor& record_tensor(const WorkRecord& record, const std::string& where, const std::string& name,
                                at::ScalarType type, at::IntArrayRef shape) {
  const auto found = record.find(name);
  if (found == record.end()) damaged_run(where, "tensor '" + name + "' is missing");
  const at::Tensor& t = found->second;
  if (t.scalar_type() != type || t.sizes() != shape) {
    damaged_run(where, "tensor '" + name + "' is not of the form that the run has");
  }
  return t;
}

}  // namespace oscar
