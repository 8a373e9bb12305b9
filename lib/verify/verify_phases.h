// Names of the phases that a timeline of a verification has (base/timeline.h), in the order of a run. A pass of a
// method has a phase of its own, named after it.
#pragma once

#include <string>
#include <vector>

#include "attention/cached_attention.h"
#include "cache/kv_method.h"

namespace oscar::verify_phase {

inline constexpr const char* kStarting = "starting";    // loading libraries, options, the model's files, device
inline constexpr const char* kReading = "reading";      // bundles with their hashes, tokenizer, text
inline constexpr const char* kWeights = "weights";      // read and copied to the device
inline constexpr const char* kErrors = "layer errors";  // each method's attention on the baseline's own inputs
inline constexpr const char* kChecks = "checks";        // paged caches, second BF16 run, spectra, self checks
inline constexpr const char* kScoring = "scoring";      // logits and what they say
inline constexpr const char* kTasks = "tasks";
inline constexpr const char* kSaving = "saving";      // state of the run, in its work directory
inline constexpr const char* kRanks = "other ranks";  // waiting for them and their scores
inline constexpr const char* kReport = "report";      // intervals, gates, files

// Its layers over whole sequences, or token by token through the paged cache; without what is coded before the first.
inline std::string forward_of(const KvMethod& method) { return "forward " + method.id; }
inline std::string decode_of(const KvMethod& method) { return "decode " + method.id; }

// The phases of every run. Those of the methods come behind them, in the order in which they run.
inline std::vector<std::string> all() {
  return {kStarting, kReading, kWeights, kCodingPhase, kErrors, kChecks, kScoring, kTasks, kSaving, kRanks, kReport};
}

}  // namespace oscar::verify_phase
