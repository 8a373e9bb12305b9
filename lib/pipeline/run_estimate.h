// How long the phases of `oscar-fit --model` take on this machine, from a short timed probe: one layer of each kind
// (full attention, or a window) runs on probe_tokens() tokens and on a quarter of them. What a layer takes is then
//   seconds(T) = a T + b P(T),   P(T) the query-key pairs that the layer's attention sees in T tokens,
// for the forward pass, the moments and the far pairs separately. Curves count the passes of measure_curves.h, with the
// exact cache, and the logits that each scores; self-generated text counts steps of one token for each row, and the
// prefills between blocks. Phases that take no notable time are not listed.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "collect/far_pairs.h"
#include "layout/cache_windows.h"

namespace oscar {

// Tokens of the longer probe; the shorter has a quarter. A GPU is not busy with few, and a CPU takes long for many if
// the layers are large.
std::int64_t probe_tokens(const ModelConfig& model, at::Device device);

// What a run will do.
struct RunShape {
  std::vector<std::int64_t> lengths;  // of the sequences that statistics are collected from, in tokens
  FarPairs far;
  std::int64_t range_tokens = 0;  // of the sequence that collect/reading_range.h tries; 0: none
  std::int64_t text_rows = 0, text_row_tokens = 0, text_batch = 1;  // self-generated; 0 rows: none
  std::int64_t curve_sequences = 0, curve_context = 0;              // 0: no curves are measured
  std::size_t curve_budgets = 0;                                    // whose wholes are measured
  CacheWindows windows;                                             // of the curves
};

struct PhaseSeconds {
  std::string name;  // as -v reports it (collect/collect_phases.h, fit/fit_phases.h)
  double seconds = 0.0;
};

// In the order of a run. Loads one layer at a time, and the head. The checkpoint's shards must be there.
std::vector<PhaseSeconds> estimate_run(const Checkpoint& checkpoint, at::ScalarType dtype, at::Device device,
                                       const RunShape& shape);

double whole_seconds(const std::vector<PhaseSeconds>& phases);

// Query-key pairs of a sequence: all before a query and itself, or those within `span` tokens (0: no window).
double attention_pairs(std::int64_t tokens, std::int64_t span);

}  // namespace oscar
