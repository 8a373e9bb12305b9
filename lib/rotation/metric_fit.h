// Transforms that are fitted to both the rows and the metric of their errors: methods balanced and waterfill.
#pragma once

#include <string>
#include <vector>

#include "rotation/fit_options.h"
#include "rotation/transform_check.h"
#include "rotation/waterfill.h"

namespace oscar {

// One side of one layer. S = 1 (scope layer) or Hkv.
struct MetricSide {
  SideTransform transform;         // no widths yet
  at::Tensor lambda;               // [Hkv, d] descending: the common diagonal of rows and metric, in error units
  SideEnergy energy;               // of four blocks of d/4 of each head, over R
  double gain = 1.0;               // AM/GM of lambda^2, mean over heads of its logarithm: what allocation can win
  double residual = 1.0;           // R: residual_power()
  std::vector<double> conditions;  // [S]
  TransformCheck check;            // the worst of the heads; zeros where the statistics have no rows
};

// [layer]. A head whose transform is badly conditioned is fitted again with more damping, and gets the Hadamard matrix
// if that does not help, or if logits (values) of sampled rows come out changed; a head that never varies, or whose
// errors nothing sees, gets the Hadamard matrix: each with a warning that names it. NumericalError naming the head for
// a failed decomposition.
std::vector<MetricSide> fit_metric_side(const Statistics& statistics, const FitOptions& options, Side side, bool blocks,
                                        std::vector<std::string>& warnings);

}  // namespace oscar
