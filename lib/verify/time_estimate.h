// How long a run of oscar-verify will take, from one layer on a piece of its text: for --dry-run.
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
  std::int64_t first_position = 0;  // of the scored positions
  std::int64_t layer_sequences = 1;
  std::int64_t decode_batch = 8;
  std::int64_t decode_last = 0;  // tokens of a sequence that are decoded, one sequence at a time; 0: all, in batches
  std::int64_t task_tokens = 0;  // of all task prompts together
};

struct TimeEstimate {
  double seconds = 0;
  std::int64_t sample_tokens = 0;  // that it was measured on
};

// Runs layer 0 over the first tokens of a sequence with the BF16 cache, with one quantized method and, for the decode
// path, some steps of one token behind half a context; and one block of logits with its scores. Every layer and every
// method is taken to cost as much. Reads the weights of one layer and the head.
TimeEstimate estimate_time(const Checkpoint& checkpoint, const DecoderOptions& options,
                           const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                           const SequenceSet& set, const TimeRequest& request);

}  // namespace oscar
