// The state of a measurement on disk: records of named tensors, each written atomically. Record names:
//   group-00003         scores of all rows on the sequences of a finished group, and the sums so far
//   task-niah-2048-prefill   answers found so far
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/run_directory.h"
#include "checkpoint/safetensors.h"

namespace oscar {

using WorkRecord = std::map<std::string, at::Tensor>;  // FP64, FP32, BF16, int64 or uint8, on the CPU

class VerifyWork {
 public:
  // As RunDirectory; `run`: {tool_version, model, bundle, text, threads, options{...}}.
  VerifyWork(const fs::path& path, const Json& run, bool resume);

  const fs::path& path() const { return run_.path(); }
  int threads() const { return run_.threads(); }

  std::optional<WorkRecord> load(const std::string& name) const;                                    // nullopt if absent
  WorkRecord load_tensors(const std::string& name, const std::vector<std::string>& tensors) const;  // only the named
                                                                                                    // tensors, if they
                                                                                                    // exist
  fs::path file(const std::string& name) const;                                                     // path of a record
  void save(const std::string& name, const WorkRecord& record) const;
  void remove() { run_.remove(); }

 private:
  RunDirectory run_;
};

WorkRecord work_record(const SafetensorsFile& file);  // InputError for an unsupported number type

// The tensor with that name. InputError naming `where` if it is missing or has the wrong type or shape.
const at::Tensor& record_tensor(const WorkRecord& record, const std::string& where, const std::string& name,
                                at::ScalarType type, at::IntArrayRef shape);

}  // namespace oscar
