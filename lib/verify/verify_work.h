// The state of a measurement on disk: records of named lists of numbers, each written atomically. Record names:
//   group-00003         scores of all rows on the sequences of a finished group, and the sums so far
//   task-niah-2048-prefill   answers found so far
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/run_directory.h"
#include "checkpoint/safetensors.h"

namespace oscar {

using WorkRecord = std::map<std::string, std::vector<double>>;

class VerifyWork {
 public:
  // As RunDirectory; `run`: {tool_version, model, bundle, text, threads, options{...}}.
  VerifyWork(const fs::path& path, const Json& run, bool resume);

  const fs::path& path() const { return run_.path(); }
  int threads() const { return run_.threads(); }

  std::optional<WorkRecord> load(const std::string& name) const;  // nullopt if absent
  // Only one list of a record, if it exists.
  WorkRecord load_list(const std::string& name, const std::string& list) const;
  fs::path file(const std::string& name) const;  // path of a record
  void save(const std::string& name, const WorkRecord& record) const;
  void remove() { run_.remove(); }

 private:
  RunDirectory run_;
};

// InputError for other types than FP64. list: empty, or the only one that is read.
WorkRecord work_record(const SafetensorsFile& file, const std::string& list = {});

// The list with that name. InputError naming `where` if it is missing, or has another length than `size` (nullopt:
// any).
const std::vector<double>& record_list(const WorkRecord& record, const std::string& where, const std::string& name,
                                       std::optional<std::size_t> size = {});

}  // namespace oscar
