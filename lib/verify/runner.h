// Scores every method on every sequence against one baseline pass. Memory does not grow with the text: hidden states
// are kept for one group of sequences, logits for one block of rows, and scores in a ScoreStore.
// With a work directory, each finished pass of a method over a group is saved, and a later run continues after it.
// Streamed weights load once per group, for all its sequences and methods. Such a group is saved only when complete.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "cache/kv_method.h"
#include "distributed/ranks.h"
#include "model/decoder.h"
#include "report/metrics.h"
#include "report/report.h"
#include "text/sequences.h"
#include "verify/cache_check.h"
#include "verify/score_store.h"

namespace oscar {

struct RunnerOptions {
  bool prefill = true, decode = false;
  std::int64_t first_position = 320;  // first scored position
  CacheWindows tiers;                 // whose sink and recent windows define the masses in layer errors
  std::int64_t layer_sequences = 1;   // sequences with layer errors
  std::int64_t decode_batch = 8;      // sequences decoded together
  // Tokens of each sequence on the decode path, after a cache that an exact pass fills (forward.h), as in an engine
  // whose prompts come in one chunk; 0: all. Needs both paths and can_fill_cache().
  std::int64_t decode_last = 0;
  std::int64_t streamed_batch = 8;   // sequences that pass through streamed layers together
  const VerifyWork* work = nullptr;  // null: saves nothing
  Timeline* timeline = nullptr;      // verify_phases.h; null: measures nothing
  Ranks* ranks = nullptr;            // ranks that share the sequences; needs `work`
  // Check pages in parallel with passes of the first sequence. A GPU always does this; on the CPU both compete for
  // cores.
  bool background_checks = false;
};

// One method on one path.
struct ScoredMethod {
  const KvMethod* method = nullptr;
  std::string path;  // prefill | decode
};

struct RunnerResult {
  std::vector<ScoredMethod> scored;             // for each method prefill, then decode
  ScoreStore scores;                            // row r belongs to scored[r]
  std::vector<std::vector<LayerError>> layers;  // [methods]; empty for bf16
  std::vector<CacheCheck> caches;               // [methods], first sequence; empty for methods without pages
  std::vector<KlMetrics> path_difference;  // [methods with pages], KL(prefill || decode); empty unless both ran whole
  double null_kl = 0;                      // largest KL between two baseline runs of the first sequence
  std::int64_t null_tokens = 0;
  std::int64_t tokens = 0;  // scored
};

// Scores positions first_position .. T - 2, each against the next token, because the likelihood needs a target (KL does
// not). A method without quantization equals the baseline on the prefill path and is not run again there. With ranks,
// rank 0 gets the result; results on other ranks are meaningless.
// NumericalError if logits are not finite; InterruptedError on SIGINT.
RunnerResult run_methods(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                         const SequenceSet& set, const RunnerOptions& options);

}  // namespace oscar
