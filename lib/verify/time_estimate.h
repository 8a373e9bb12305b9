// Estimates the run time of oscar-verify from one layer of each kind (model/layer_timer.h), for --dry-run.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/kv_method.h"
#include "checkpoint/checkpoint.h"
#include "model/decoder.h"
#include "text/sequences.h"

namespace oscar {

struct TimeRequest {
  bool prefill = true, decode = false;
  std::int64_t first_position = 0;  // first scored position
  std::int64_t layer_sequences = 1;
  std::int64_t decode_batch = 8;
  std::int64_t decode_last = 0;  // decoded tokens per sequence, one sequence at a time; 0: all, in batches
  std::int64_t task_tokens = 0;  // in all task prompts
};

struct TimeEstimate {
  double seconds = 0;
  std::int64_t sample_tokens = 0;  // tokens used for the measurement
};

// Runs one layer of each kind over a few tokens with the BF16 cache and with one quantized method. For the decode path
// it also runs some single-token steps after half of them. It scores one block of logits. Assumes that all methods cost
// the same. Reads the weights of these layers and the head.
TimeEstimate estimate_time(const Checkpoint& checkpoint, const DecoderOptions& options,
                           const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                           const SequenceSet& set, const TimeRequest& request);

}  // namespace oscar
