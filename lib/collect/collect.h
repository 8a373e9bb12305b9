// One calibration run: all sequences go through layer 0, then all through layer 1, and so on. So the weights of one
// layer are enough, and memory does not grow with the number of tokens. Hidden states, and K and V of the current
// layer, are in files of the work directory. The work directory also holds checkpoints: a killed run continues from the
// last checkpoint and writes the same bytes as an uninterrupted run.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "checkpoint/checkpoint.h"
#include "collect/far_pairs.h"
#include "collect/token_plan.h"
#include "distributed/ranks.h"
#include "statistics/statistics.h"
#include "text/prompts.h"

namespace oscar {

struct CollectOptions {
  std::int64_t tokens = 30000;  // budget
  std::int64_t seq_len = 4096;
  // Above 0: prompts are packed into sequences of seq_len tokens, for contexts of this length (apps/options ensures
  // that seq_len is not longer). 0: each prompt is a sequence.
  std::int64_t context = 0;
  std::int64_t rows = 512;  // rows of the sample, per layer
  std::uint64_t seed = 0;
  FarPairs far;  // windows of the metrics of pairs outside the windows
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  Shard shard;             // this process's share of the run; also of the plan that collect() gets
  Ranks* ranks = nullptr;  // other processes that collect the other shares; rank 0 writes the merged result
  bool resume = false, overwrite = false;
  fs::path output, work_dir;         // empty work_dir: output + ".work", removed at the end
  double checkpoint_seconds = 30;    // between checkpoints; with hidden states on disk, after every layer
  bool hold_states = false;          // keeps hidden states in memory on the CPU, as on a GPU; for tests
  std::string tool_version;          // recorded, and compared when a run is resumed
  std::string resume_command;        // for the message of an interrupted run
  std::vector<std::string> files;    // names of the prompt files, recorded
  Json written;                      // recorded: how the model wrote the prompts itself; null: prompts were given
  bool text_hashes = true;           // record hashes of documents and passages
  Timeline* timeline = nullptr;      // if set, gets the phases of collect_phases()
  std::function<void()> after_step;  // called after each step of each layer; tests stop a run here
};

struct CollectReport {
  bool resumed = false;
  double seconds = 0;      // of this process, all layers
  double far_queries = 0;  // queries with at least one key outside the windows; 0: no metrics written
};

// Collects statistics and writes options.output. For an empty plan (a shard without sequences) it writes a file without
// sums. With ranks, the shard is the rank's share. Rank 0 writes the merge_shards() result of all
// shares and reports all of them, except that times are its own; the other ranks write nothing. Throws UsageError (the
// output exists, or the work directory holds another run), InputError (the work directory is damaged, or belongs to
// other prompts or another model), EnvironmentError (disk, lock), NumericalError (NaN or infinity, with layer and
// prompt), InterruptedError (the state is saved; the message says how to continue).
CollectReport collect(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                      const CollectOptions& options);

// The phases of collecting in table order: the caller enters the first two, collect() the others. On a GPU the timeline
// waits for the device at the start and end of a phase.
std::vector<std::string> collect_phases();

// The work directory of a run with these options. Each rank has its own folder inside the run's directory.
fs::path work_directory_of(const CollectOptions& options);
fs::path run_directory_of(const CollectOptions& options);

}  // namespace oscar
