// Phase names of a verification timeline (base/timeline.h), in the order of a run. Each method's pass is a separate
// phase named after it.
#pragma once

#include <string>
#include <vector>

#include "attention/cached_attention.h"
#include "cache/kv_method.h"

namespace oscar::verify_phase {

inline constexpr const char* kStarting = "starting";    // options, the model's files, device
inline constexpr const char* kReading = "reading";      // bundles and their hashes, tokenizer, text
inline constexpr const char* kWeights = "weights";      // read and copied to the device
inline constexpr const char* kErrors = "layer errors";  // each method's attention on the baseline's inputs
inline constexpr const char* kChecks = "checks";        // paged caches, second BF16 run, self-checks
inline constexpr const char* kServed = "served";        // waiting for a server, and scoring its answers
inline constexpr const char* kScoring = "scoring";      // logits and their scores
inline constexpr const char* kTasks = "tasks";
inline constexpr const char* kSaving = "saving";      // run state in the work directory
inline constexpr const char* kRanks = "other ranks";  // waiting for other ranks and their scores
inline constexpr const char* kReport = "report";      // intervals, gates, files

// forward_of(): the method's layers over complete sequences, without the time in kCodingPhase. decode_of(): token by
// token through the paged cache.
inline std::string forward_of(const KvMethod& method) { return "forward " + method.id; }
inline std::string decode_of(const KvMethod& method) { return "decode " + method.id; }

// The phases of every run. The methods' phases follow, in the order in which they run.
inline std::vector<std::string> all() {
  return {kStarting, kReading, kWeights, kCodingPhase, kErrors, kChecks,
          kScoring,  kServed,  kTasks,   kSaving,      kRanks,  kReport};
}

}  // namespace oscar::verify_phase
