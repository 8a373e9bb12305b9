// Stores hidden states of finished passes in the work directory until their group is scored, so that an interrupted run
// continues after the last pass.
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
