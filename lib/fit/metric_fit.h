// Transforms fitted to both the rows and the metric of their errors: methods balanced and waterfill.
#pragma once

#include <string>
#include <vector>

#include "fit/fit_options.h"
#include "fit/side_moments.h"
#include "fit/transform_check.h"
#include "fit/waterfill.h"

namespace oscar {

// One side of one layer. S = 1 (scope layer) or Hkv.
struct MetricSide {
  SideTransform transform;         // no widths yet
  at::Tensor lambda;               // [Hkv, d] descending: the common diagonal of rows and metric, in units of error
  SideEnergy energy;               // of four blocks of d/4 of each head, divided by R
  double gain = 1.0;               // AM/GM of lambda^2, geometric mean over heads: the possible gain of allocation
  double residual = 1.0;           // R: residual_power()
  std::vector<double> conditions;  // [S]
  TransformCheck check;            // of the worst head; zeros if the statistics have no rows
};

// [layer]. A head with a badly conditioned transform is fitted again with more damping. It gets the Hadamard matrix if
// that does not help, or if the transform changes logits (values) of sampled rows. A head that never varies, or whose
// errors nothing reads, also gets the Hadamard matrix. Each case adds a warning that names the head. NumericalError
// naming the head for a failed decomposition.
// moments: fitted_moments() of the side.
std::vector<MetricSide> fit_metric_side(const Statistics& statistics, const FitOptions& options, Side side, bool blocks,
                                        const std::vector<SideMoments>& moments, std::vector<std::string>& warnings);

}  // namespace oscar
