// Finding clip ratios on sampled rows: one for each layer (or KV head) and side, and the one ratio for a whole model
// that the published format can carry.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "rotation/fit_rows.h"
#include "rotation/side_moments.h"
#include "rotation/targets.h"
#include "rotation/transform.h"
#include "statistics/statistics.h"

namespace oscar {

// Ratios to try for head size d: 0 (off), then ratios that clip 1, 2, 3, ... channels of a row, in growing steps up to
// three quarters of them: where a few outlier directions that no query reads fill every rotated channel, cutting most
// of the row is right. Each lies in the middle of the ratios that mean the same, rounded to three decimals.
std::vector<float> clip_candidates(std::int64_t d);

struct ClipSearch {
  Side side = Side::kKey;
  Scope scope = Scope::kLayer;
  MetricSource metric = MetricSource::kAuto;
  RowCode code;
  Encoder encoder = Encoder::kMinMax;
};

struct ClipChoice {
  std::vector<std::vector<float>> layers;  // [layer][1 or Hkv]
  float one = 0.0f;                        // of the whole model
};

// The objective is the error of the rows in the metric of their side (predict.h, SideCosts): of far pairs where the
// statistics have them, for values with a common shrinking counted more than errors that cancel (gain_scorer).
// docs/transforms.md compares it with the KL that was measured.
//
// For each layer (scope head: each KV head): the candidate of least error on the rows of the `fit` half. The one ratio
// of the model: that of the least sum over layers, each in units of the residual stream its errors are added to;
// without far pairs, of relative errors. On the held-out half a choice must then be ahead of no clip, and the choices
// of all layers together clearly ahead of the published ratio, which is taken in all of them where they are not
// (docs/transforms.md has the measurements behind the margin). Ties go to less clipping. on_head is called once for
// each layer and head.
inline constexpr double kClearlyAhead = 0.82;                                   // of the published ratio's error
inline constexpr float kPublishedKeyClip = 0.96f, kPublishedValueClip = 0.92f;  // of the published launch lines
ClipChoice search_clip(const Statistics& statistics, const std::vector<SideTransform>& transforms,
                       const std::vector<LayerRows>& rows, const ClipSearch& search,
                       const std::function<void()>& on_head);

}  // namespace oscar
