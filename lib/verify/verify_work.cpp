#include "verify/verify_work.h"

#include <cstring>
#include <span>

#include "checkpoint/run_tensors.h"

namespace oscar {
namespace {

constexpr const char* kSuffix = ".safetensors";

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

SafetensorsFile open_own(const fs::path& path, const RunDirectory& run) {
  SafetensorsFile file = open_run_tensors(path);
  const auto owner = file.metadata().find("run");
  run.require_own(owner == file.metadata().end() ? "" : owner->second, path);
  return file;
}

}  // namespace

WorkRecord work_record(const SafetensorsFile& file, const std::string& list) {
  WorkRecord record;
  for (const TensorView& view : file.tensors()) {
    if (!list.empty() && view.name != list) continue;
    if (view.dtype != DType::kF64 || view.shape.size() != 1) {
      damaged_run(file.path().string(), "tensor '" + view.name + "' is no list of FP64 numbers");
    }
    std::vector<double>& numbers = record[view.name];
    numbers.resize(view.data.size() / sizeof(double));
    if (!numbers.empty()) std::memcpy(numbers.data(), view.data.data(), view.data.size());
  }
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
  return work_record(open_own(path, run_));
}

WorkRecord VerifyWork::load_list(const std::string& name, const std::string& list) const {
  return work_record(open_own(file(name), run_), list);
}

void VerifyWork::save(const std::string& name, const WorkRecord& record) const {
  std::vector<TensorView> views;
  for (const auto& [key, numbers] : record) {
    views.push_back({key, DType::kF64, {std::ssize(numbers)}, std::as_bytes(std::span(numbers))});
  }
  save_run_tensors(file(name), views, {{"run", run_.run_id()}});
}

const std::vector<double>& record_list(const WorkRecord& record, const std::string& where, const std::string& name,
                                       std::optional<std::size_t> size) {
  const auto found = record.find(name);
  if (found == record.end()) damaged_run(where, "tensor '" + name + "' is missing");
  if (size && found->second.size() != *size) {
    damaged_run(where, "tensor '" + name + "' is not of the form that the run has");
  }
  return found->second;
}

}  // namespace oscar
