// Hidden states of passes over sequences, kept in the work directory from when a pass is done until its group is
// scored: an interrupted run goes on behind the last pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>

#include "base/timeline.h"
#include "model/decoder.h"
#include "text/sequences.h"
#include "verify/verify_work.h"

namespace oscar {

class SavedHidden {
 public:
  // work: null, and nothing is kept. decoder and set must outlive the object. Nothing is kept of streamed layers
  // either: the sums of their sequences come together, and cannot be told apart when a run goes on.
  SavedHidden(const VerifyWork* work, const Decoder& decoder, const SequenceSet& set, Timeline* timeline)
      : work_(work), decoder_(decoder), set_(set), timeline_(timeline) {}

  struct Found {
    at::Tensor hidden;  // [tokens, hidden] on the decoder's device
    WorkRecord record;  // with what was saved beside it
    std::string where;  // the file, for messages
  };
  // What an earlier run has saved; row: "base" or the number of a scored row. InputError for a damaged record.
  std::optional<Found> load(std::size_t sequence, const std::string& row) const;
  // States that are not finite are not worth keeping: scoring them ends the run. record: to be saved beside them.
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
