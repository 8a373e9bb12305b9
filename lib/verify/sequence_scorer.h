// Scores one sequence from hidden states. Logits exist for one block of rows at a time, so memory does not grow with
// the text.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "model/decoder.h"
#include "report/metrics.h"
#include "text/sequences.h"
#include "verify/runner.h"

namespace oscar {

// Scores positions first_position .. T - 2 of a sequence. All functions: NumericalError if logits are not finite,
// InterruptedError on SIGINT.
class SequenceScorer {
 public:
  // decoder and set must outlive the object.
  SequenceScorer(Decoder& decoder, const SequenceSet& set, std::int64_t first_position, Timeline* timeline)
      : decoder_(decoder), set_(set), first_position_(first_position), timeline_(timeline) {}

  struct NullRun {
    double kl = 0;  // largest value of a token
    std::int64_t tokens = 0;
  };
  // Compares two baseline passes over the first sequence, [T, hidden] each: the noise of the device.
  NullRun null_run(const at::Tensor& hidden, const at::Tensor& again) const;

  // Appends the scores of sequence s to the rows of `all`: first each scored method against the baseline. Any further
  // rows compare each decode row with the prefill row before it. hidden: [scored] of [T, hidden]. Returns the number of
  // scored tokens.
  std::int64_t score(std::size_t s, const at::Tensor& baseline, const std::vector<at::Tensor>& hidden,
                     const std::vector<ScoredMethod>& scored, std::vector<std::vector<SequenceScores>>& all) const;

 private:
  using Block = std::function<void(std::int64_t from, std::int64_t rows, std::span<const std::int32_t> targets,
                                   const std::string& where)>;
  void for_each_block(std::size_t s, const Block& body) const;

  Decoder& decoder_;
  const SequenceSet& set_;
  std::int64_t first_position_;
  Timeline* timeline_;
};

}  // namespace oscar
