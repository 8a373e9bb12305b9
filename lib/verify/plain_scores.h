// Scores of methods on sequences without a report: at the end of a fit, and for the noise of one.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/kv_method.h"
#include "checkpoint/checkpoint.h"
#include "model/decoder.h"
#include "report/metrics.h"
#include "report/report.h"
#include "text/sequences.h"

namespace oscar {

// Scores of methods on sequences in the simulated prefill, without what a report has beside them: null run, layer
// errors, checks of pages. For the measurement at the end of a fit.
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

// What a KL contains that no code causes: the noise of a report.
// On the first sequence, against the BF16 cache of `decoder`, which is on a CPU in FP32: the same cache where weights,
// activations and products are BF16, if `bfloat16`; and each of `methods` with every token in its BF16 window, so that
// only its transforms, and their rounding to BF16, remain. NumericalError, InterruptedError.
NoiseFacts measure_noise(Decoder& decoder, const Checkpoint& checkpoint, const KvMethod& baseline,
                         const std::vector<const KvMethod*>& methods, const SequenceSet& set,
                         std::int64_t first_position, bool bfloat16);

}  // namespace oscar
