// Scores every method on every sequence against one baseline pass: hidden states are kept for one group of sequences,
// logits for one block of rows, scores of tokens in a ScoreStore, so memory does not grow with the text. With a work
// directory each method's pass over a group is saved when it is done, and a later run goes on behind it. Streamed
// weights are loaded once for a group, with all its sequences and methods, and the group is saved as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
  CacheWindows tiers;                 // whose sink and recent tokens the masses of the layer errors are of
  std::int64_t layer_sequences = 1;   // sequences that layer errors are measured on
  std::int64_t decode_batch = 8;      // sequences that are decoded side by side
  // Tokens of each sequence on the decode path, behind a cache that the prefill pass fills (decode_tail.h, whose
  // can_fill_cache() must hold); 0: all. Needs both paths.
  std::int64_t decode_last = 0;
  std::int64_t streamed_batch = 8;   // sequences that pass through streamed layers together
  const VerifyWork* work = nullptr;  // null: nothing is saved
  Timeline* timeline = nullptr;      // verify_phases.h; null: nothing is measured
  Ranks* ranks = nullptr;            // that share the sequences; needs `work`
  bool spectra = false;              // which the last of them measures behind its sequences
  // Pages are checked beside the passes of the first sequence, as on a GPU always; on the CPU both want its cores.
  bool background_checks = false;
};

// One method on one path.
struct ScoredMethod {
  const KvMethod* method = nullptr;
  std::string path;  // prefill | decode
};

struct RunnerResult {
  std::vector<ScoredMethod> scored;             // for each method prefill, then decode
  ScoreStore scores;                            // row r: of scored[r]
  std::vector<std::vector<LayerError>> layers;  // [methods]; empty for bf16
  std::vector<CacheCheck> caches;               // [methods], first sequence; nothing in it for methods without pages
  std::vector<KlMetrics> path_difference;       // [methods with pages], KL(prefill || decode); empty unless both ran
  double null_kl = 0;                           // largest KL of the baseline against its second run, first sequence
  std::int64_t null_tokens = 0;
  std::int64_t tokens = 0;  // scored
};

// KL needs no target, the likelihood does: positions first_position .. T - 2 are scored, each against the token that
// follows. A method that is not quantized is the baseline itself on the prefill path and is not run again there.
// With ranks rank 0 gets the result; the others get nothing that is worth looking at.
// NumericalError when logits are not finite; InterruptedError on SIGINT.
RunnerResult run_methods(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                         const SequenceSet& set, const RunnerOptions& options);

}  // namespace oscar
