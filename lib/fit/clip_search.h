// Finds clip ratios on sampled rows: one for each layer (or KV head) and side, and the single ratio for the model that
// the published format can hold.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fit/fit_rows.h"
#include "fit/predict.h"
#include "fit/targets.h"
#include "statistics/statistics.h"
#include "transform/transform.h"

namespace oscar {

// Ratios to try for head size d: 0 (off), then ratios that clip 1, 2, 3, ... channels of a row, in growing steps up to
// three quarters of them. If a few outlier directions that no query reads fill every rotated channel, clipping most of
// the row is right. Each ratio is in the middle of its equivalent ratios, rounded to three decimals.
std::vector<float> clip_candidates(std::int64_t d);

struct ClipSearch {
  Side side = Side::kKey;
  Scope scope = Scope::kLayer;
  RowCode code;
  Encoder encoder = Encoder::kMinMax;
};

struct ClipChoice {
  std::vector<std::vector<float>> layers;  // [layer][1 or Hkv]
  float one = 0.0f;                        // one ratio for the model
};

// The objective is the error of the rows in the metric of their side (predict.h, SideCosts). It covers pairs outside
// the windows if the statistics have them. For values, a common shrinking counts more than errors that compensate each
// other (gain_scorer).
//
// For each layer (scope head: each KV head), the choice is the candidate of least error on the rows of the `fit` half.
// The single ratio of the model has the least sum over layers, each in units of the residual stream to which its errors
// are added. Without pairs outside the windows it sums relative errors. On the held-out half, each choice must then
// beat no clip. The choices of all layers together must also clearly beat the published ratio, which otherwise replaces
// all of them. Ties go to less clipping. on_head is called once for each layer and head. costs: of the side.
inline constexpr double kClearlyAhead = 0.82;  // share of the published ratio's error
ClipChoice search_clip(const Statistics& statistics, const std::vector<SideTransform>& transforms,
                       const std::vector<LayerRows>& rows, const SideCosts& costs, const ClipSearch& search,
                       const std::function<void()>& on_head);

}  // namespace oscar
