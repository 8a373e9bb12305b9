// One calibration run: all sequences through layer 0, then all through layer 1, and so on, so that one layer's weights
// are enough and memory does not grow with the number of tokens: hidden states, and K and V of the
// current layer, live in files of the work directory. The work directory also holds checkpoints: a run that was killed
// at any moment continues from the last one and writes the same bytes as an uninterrupted run.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "checkpoint/checkpoint.h"
#include "distributed/byte_gather.h"
#include "distributed/ranks.h"
#include "statistics/far_pairs.h"
#include "statistics/statistics.h"
#include "statistics/token_plan.h"
#include "text/prompts.h"

namespace oscar {

struct CollectOptions {
  std::int64_t tokens = 30000;  // budget
  std::int64_t seq_len = 4096;
  // Above 0: prompts are packed into sequences of seq_len tokens, for contexts of this length (apps/options sees to it
  // that seq_len is no longer). 0: each prompt is a sequence.
  std::int64_t context = 0;
  std::int64_t rows = 512;  // of the sample, for each layer
  std::uint64_t seed = 0;
  FarPairs far;  // the far-pair metrics
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  Shard shard;                   // which share of the run: of the plan that collect() is given, too
  Ranks* ranks = nullptr;        // other processes that collect the other shares: rank 0 writes what all found
  ByteGather* gather = nullptr;  // of the ranks, on GPUs: how they load weights together
  bool resume = false, overwrite = false;
  fs::path output, work_dir;         // no work_dir: output + ".work", removed at the end
  double checkpoint_seconds = 30;    // between checkpoints; where hidden states are on disk, also after every layer
  bool hold_states = false;          // hidden states in memory on the CPU, too, as on a GPU: for tests
  std::string tool_version;          // recorded, and compared when a run is resumed
  std::string resume_command;        // for the message of an interrupted run
  std::vector<std::string> files;    // names of the prompt files, recorded
  Json written;                      // how the model wrote the prompts itself, recorded; null: they were given
  bool text_hashes = true;           // record hashes of documents and passages
  Timeline* timeline = nullptr;      // where it is set, it gets the phases of collect_phases()
  std::function<void()> after_step;  // called after each step of each layer; tests stop a run here
};

struct LayerReport {
  std::int64_t layer = 0;
  double tokens_per_second = 0;    // of this layer; 0 when it was done before the run was resumed
  double q_trace = 0, q_top8 = 0;  // of Q^T Q, mean over KV heads: what the keys are fitted to
  double o_trace = 0, o_top8 = 0;  // of V^T S^T S V: what the values are fitted to
};

struct CollectReport {
  std::vector<LayerReport> layers;
  bool resumed = false;
  double seconds = 0;          // of this process, all layers
  double far_seconds = 0;      // of these, in the metrics of pairs outside the windows
  double far_queries = 0;      // queries that had a far key; 0: no metrics were written
  double moment_seconds = 0;   // of these, in the moments (sums, sample, K and V spool, energy pass)
  double forward_seconds = 0;  // of these, in the layers' forward pass; on a GPU these three are times of the GPU
};

// Collects and writes options.output; for an empty plan (a shard without sequences) a file without sums, and a report
// without layers. With ranks the shard is that of the rank, rank 0 writes what merge_shards() makes of all shares and
// its report tells of all of them, times apart; the others write nothing. Throws UsageError (the output exists, the
// work directory holds another run), InputError (the work directory is damaged or of other prompts or another model),
// EnvironmentError (disk, lock), NumericalError (NaN or infinity, with layer and prompt), InterruptedError (state
// saved; says how to go on).
CollectReport collect(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                      const CollectOptions& options);

// The phases of collecting in the order of a table: the first two are the caller's, collect() enters the others. On a
// GPU the timeline waits for the device where a phase begins or ends.
std::vector<std::string> collect_phases();

// The work directory a run of these options uses. A rank has a folder of its own in that of the run.
fs::path work_directory_of(const CollectOptions& options);
fs::path run_directory_of(const CollectOptions& options);

}  // namespace oscar
