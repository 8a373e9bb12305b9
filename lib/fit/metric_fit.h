// Transforms that know the metric of their errors, and the check of a transform.
#pragma once

#include <string>
#include <vector>

#include "fit/fit_options.h"
#include "fit/head_scorer.h"
#include "fit/side_moments.h"
#include "fit/waterfill.h"

namespace oscar {

// Checks a transform on sampled rows without quantization: logits and values must equal the model's.

// Result for one or more heads. Keys: logits q k^T; values: rows in the metric W of head_scorer.h. Both exclude the
// mean that the transform removes.
struct TransformCheck {
  double change = 0.0;  // FP32: the largest change, divided by the largest logit (value row)
  double bf16 = 0.0;    // norm of the error with stored rows in BF16, divided by the norm of the logits (values)
  double plain = 0.0;   // the same if rows of the model are rounded to BF16

  // change at most 1e-4; bf16 at most the larger of 4 times plain and 2^-7. False for NaN and infinity.
  bool sound() const;
  void add(const TransformCheck& other);  // keeps the larger of each number
};

// problem: with fit rows, after use_transform().
TransformCheck check_transform(const HeadProblem& problem);

// Transforms fitted to both the rows and the metric of their errors: methods balanced and waterfill.

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
