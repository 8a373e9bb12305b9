// The state of a measurement on disk: records of named tensors, each written atomically. Names of records:
//   group-00003         scores of all rows on the sequences of a finished group, and the sums so far
//   hidden-00007-base   final hidden states of the baseline on a sequence of the group at work, and the sums so far
//   hidden-00007-0002   the same of a row (a method on a path)
//   task-niah-2048-prefill   answers found so far
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>

#include "base/run_directory.h"

namespace oscar {

using WorkRecord = std::map<std::string, at::Tensor>;  // FP64, FP32, BF16, int64 or uint8, on the CPU

class VerifyWork {
 public:
  // As RunDirectory; `run`: {tool_version, model, bundle, text, threads, options{...}}.
  VerifyWork(const fs::path& path, const Json& run, bool resume);

  const fs::path& path() const { return run_.path(); }
  int threads() const { return run_.threads(); }

  std::optional<WorkRecord> load(const std::string& name) const;  // nullopt: there is none
  // One tensor of a record that exists. InputError when it is not there.
  at::Tensor load_tensor(const std::string& name, const std::string& tensor) const;
  void save(const std::string& name, const WorkRecord& record) const;
  void erase(const std::string& name) const;
  void remove() { run_.remove(); }

 private:
  RunDirectory run_;
};

// The tensor of that name, InputError when it is missing, of another type or not of `elements` elements (-1: any).
const at::Tensor& record_tensor(const WorkRecord& record, const std::string& name, at::ScalarType type,
                                std::int64_t elements);

}  // namespace oscar
