// How much worse fitted transforms are on other traffic than a new fit would be: computed only from moments, without a
// model.
#pragma once

#include <cstdint>
#include <vector>

#include "fit/fit_options.h"
#include "transform/transform.h"

namespace oscar {

// Predicted errors of one side of one layer under the new moments, in units of the residual stream (as SideEnergy): of
// the bundle, and of a new transform with the same widths. On the statistics of its own fit the ratio is one, up to the
// rounding of FP32 matrices, however the widths were chosen (measured curves contain more information than moments).
struct SideRegret {
  double bundle = 0.0, refit = 0.0;
  double ratio() const;  // bundle over refit; 1 if neither has any error
};

struct LayerRegret {
  std::int64_t layer = 0;
  SideRegret key, value;
};

struct Regret {
  std::vector<LayerRegret> layers;
  SideRegret total;    // sums over layers and sides
  double moved = 0.0;  // error of a new fit that also moves bytes between layers and sides, with equal total bytes
  MetricSource metric = MetricSource::kMoments;  // the metric of errors
};

// Predicted error of one side. Rows x about the transform's mean have second moment S = F^T (C + m m^T) F in the cache
// basis. Errors cost M' = B^T M B (F: forward, B: query_side; values: B M B^T with B: inverse). A block of n channels
// with bits has its own white noise, D(w) tr(S_bb)/n tr(M'_bb). The channels of blocks without bits are lost as they
// are, tr(S_00 M'_00). Keys: D is for unbiased scales (unbiased_distortion()). Each head's error also grows by (e^{s^2}
// - 1)/s^2, with s^2 the variance that the noise gives to the logits of plain queries. moments: of the new traffic,
// centered. query_moment: [Hkv, d, d] logit_moment() of side_moments.h, for keys; unused for values. widths: of layout
// blocks; empty: 2 bits for the full head.
double predicted_side_error(const SideTransform& transform, const std::vector<std::uint8_t>& widths, Side side,
                            const SideMoments& moments, const at::Tensor& query_moment, double residual);

// `bundle`: [layer] as fitted with `options` (their widths and budget are not read: widths come from the transforms).
// InputError if geometry differs, the statistics lack data that `options` need, or the transforms are orthogonal, whose
// error does not follow from second moments.
Regret measure_regret(const std::vector<LayerTransform>& bundle, const Statistics& statistics,
                      const FitOptions& options);

}  // namespace oscar
