// Finding clip ratios on sampled rows: one for each layer (or KV head) and side, and the one ratio for a whole model
// that the published format can carry.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "moments/statistics.h"
#include "rotation/fit_rows.h"
#include "rotation/head_scorer.h"
#include "rotation/targets.h"

namespace oscar {

// What clipping is measured by; head_scorer.h has the formulas, README.md the comparison.
enum class ClipObjective { kMetric, kGain, kAttention };
const char* objective_name(ClipObjective objective);  // "metric", "gain", "attention"
std::unique_ptr<HeadScorer> make_scorer(ClipObjective objective, const HeadProblem& problem);

// Ratios to try for head size d: 0 (off), then ratios that clip 1, 2, 3, ... channels of a row, in growing steps up to
// three quarters of them: where a few outlier directions that no query reads fill every rotated channel, cutting most
// of the row is right. Each lies in the middle of the ratios that mean the same, rounded to three decimals.
std::vector<float> clip_candidates(std::int64_t d);

struct ClipSearch {
  Side side = Side::kKey;
  Scope scope = Scope::kLayer;
  ClipObjective objective = ClipObjective::kAttention;
  RowCode code;
  Encoder encoder = Encoder::kMinMax;
};

struct ClipChoice {
  std::vector<std::vector<float>> layers;  // [layer][1 or Hkv]
  float global = 0.0f;
};

// For each layer (scope head: each KV head): the candidate with the smallest error on the rows of the `fit` half, kept
// if its error on the held-out half is smaller than without clip, else no clip. The global ratio: the same with the sum
// over layers of relative errors. Ties go to less clipping. on_head is called once for each layer and head.
ClipChoice search_clip(const Statistics& statistics, const std::vector<SideTransform>& transforms,
                       const std::vector<LayerRows>& rows, const ClipSearch& search,
                       const std::function<void()>& on_head);

}  // namespace oscar
