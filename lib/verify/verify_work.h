// The state of a measurement on disk: records of named tensors, each written atomically. Record names:
//   group-00003         scores of all rows on the sequences of a finished group, and the sums so far
//   hidden-00007-base   final hidden states of the baseline on a sequence of the current group, and the sums so far
//   hidden-00007-0002   the same for a row (a method on a path)
//   task-niah-2048-prefill   answers found so far
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/run_directory.h"
#include "base/timeline.h"
#include "checkpoint/safetensors.h"
#include "model/decoder.h"
#include "text/sequences.h"

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
  void erase(const std::string& name) const;
  void remove() { run_.remove(); }

 private:
  RunDirectory run_;
};

WorkRecord work_record(const SafetensorsFile& file);  // InputError for an unsupported number type

// The tensor with that name. InputError naming `where` if it is missing or has the wrong type or shape.
const at::Tensor& record_tensor(const WorkRecord& record, const std::string& where, const std::string& name,
                                at::ScalarType type, at::IntArrayRef shape);

// Stores hidden states of finished passes in the work directory until their group is scored, so that an interrupted run
// continues after the last pass.
class SavedHidden {
 public:
  // work: null stores nothing. decoder and set must outlive the object. With streamed layers, nothing is stored either:
  // the sums of their sequences arrive together, so a resumed run could not separate them.
  SavedHidden(const VerifyWork* work, const Decoder& decoder, const SequenceSet& set, Timeline* timeline)
      : work_(work), decoder_(decoder), set_(set), timeline_(timeline) {}

  struct Found {
    at::Tensor hidden;  // [tokens, hidden] on the decoder's device
    WorkRecord record;  // with the data saved beside it
    std::string where;  // the file, for messages
  };
  // The data saved by an earlier run. row: "base" or the number of a scored row. InputError for a damaged record.
  std::optional<Found> load(std::size_t sequence, const std::string& row) const;
  // States that are not finite are not saved, because scoring them ends the run. record: saved beside them.
  void save(std::size_t sequence, const std::string& row, const at::Tensor& hidden, WorkRecord record) const;
  void erase(std::size_t sequence, const std::string& row) const;

 private:
  bool keeps() const { return work_ != nullptr && !decoder_.options().stream_layers; }

  const VerifyWork* work_;
  const Decoder& decoder_;
  const SequenceSet& set_;
  Timeline* timeline_;
};

}  // namespace oscar
