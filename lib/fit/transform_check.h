// Checks a transform on sampled rows without quantization: logits and values must equal the model's.
#pragma once

#include "fit/head_scorer.h"

namespace oscar {

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

}  // namespace oscar
