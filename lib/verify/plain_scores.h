// Scores of methods on sequences in the simulated prefill, without what a report has beside them: null run, layer
// errors, checks of pages. For the measurement at the end of a fit.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/kv_method.h"
#include "checkpoint/checkpoint.h"
#include "model/decoder.h"
#include "report/metrics.h"
#include "text/sequences.h"

namespace oscar {

class PlainScores {
 public:
  // Loads the head; each measurement loads one layer at a time. windows: positions whose query sees no quantized key by
  // them are not scored.
  PlainScores(const Checkpoint& checkpoint, DecoderOptions decoding, SequenceSet set, const CacheWindows& windows);

  // Against the BF16 cache, whose states are kept from the first call. NumericalError, InterruptedError.
  QualityMetrics measure(const KvMethod& method, const BootstrapOptions& bootstrap);

  const SequenceSet& set() const { return set_; }
  // Of the first sequence in the last measurement.
  const SequenceScores& first_scores() const { return first_scores_; }

 private:
  Decoder decoder_;
  SequenceSet set_;
  std::int64_t first_position_;
  KvMethod baseline_;
  std::vector<at::Tensor> exact_;  // [S] of [T, hidden]
  SequenceScores first_scores_;
};

}  // namespace oscar
