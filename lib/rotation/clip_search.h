// Finding clip ratios on sampled rows: one for each layer (or KV head) and side, and the one pair for a whole model
// that the published format can carry.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rotation/head_scorer.h"
#include "rotation/targets.h"

namespace oscar {

// What clipping is measured by; head_scorer.h has the formulas.
enum class ClipObjective { kMetric, kGain, kAttention };

// Ratios to try for head size d: 0 (off), then ratios that clip 1, 2, 3, ... channels of a row, up to a fifth of them.
// Each lies in the middle of the ratios that mean the same, rounded to three decimals.
std::vector<float> clip_candidates(std::int64_t d);

// Errors of each candidate on both halves of the rows of one head.
struct ClipCurve {
  std::vector<ErrorSum> fit, held_out;  // by candidate
  ClipCurve& operator+=(const ClipCurve& other);
};

using ScorerFactory = std::unique_ptr<HeadScorer> (*)(const HeadProblem&);
ScorerFactory scorer_factory(ClipObjective objective);

// The candidate with the smallest fit error, if it is better than no clip (candidate 0) on the held-out rows too;
// else 0. Ties go to less clipping.
std::size_t choose_clip(const ClipCurve& curve);

// The candidate with the smallest sum over layers of relative fit errors, checked against no clip in the same way.
std::size_t choose_global_clip(const std::vector<ClipCurve>& layers);

}  // namespace oscar
