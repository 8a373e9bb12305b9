// A transform on sampled rows where nothing is quantized: logits and values must come out as the model has them.
#pragma once

#include "rotation/head_scorer.h"

namespace oscar {

// Of one head or several. Keys: logits q k^T; values: rows in the metric W of head_scorer.h. The mean that the
// transform removes is no part of either.
struct TransformCheck {
  double change = 0.0;  // in FP32: the largest change, over the largest logit (value row)
  double bf16 = 0.0;    // norm of the error when stored rows are rounded to BF16, over that of the logits (values)
  double plain = 0.0;   // the same for rows of the model rounded to BF16

  // change at most 1e-4; bf16 at most 4 times plain or 2^-7, whichever is larger. False for NaN and infinity.
  bool sound() const;
  void add(const TransformCheck& other);  // keeps the larger of each
};

// problem: of fit rows, after use_transform().
TransformCheck check_transform(const HeadProblem& problem);

}  // namespace oscar
