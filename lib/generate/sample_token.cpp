#include "generate/sample_token.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace oscar {

std::int32_t sample_token(const float* logits, std::int64_t vocabulary, double unit) {
  const float highest = *std::max_element(logits, logits + vocabulary);
  std::vector<double> weights(static_cast<std::size_t>(vocabulary));
  double total = 0.0;
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    total += weights[static_cast<std::size_t>(i)] = std::exp(static_cast<double>(logits[i]) - highest);
  }
  if (!std::isfinite(total)) {
    throw NumericalError(
        "the model's logits hold NaN or infinity while it writes calibration text; check the checkpoint, or try "
        "--dtype float32");
  }
  double below = 0.0;
  std::int32_t last = 0;  // rounding may leave the sum below unit * total: then the last token that is possible
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    const double weight = weights[static_cast<std::size_t>(i)];
    if (weight <= 0.0) continue;
    last = static_cast<std::int32_t>(i);
    below += weight;
    if (below > unit * total) break;
  }
  return last;
}

std::vector<std::int32_t> sample_tokens(const at::Tensor& logits, std::int64_t vocabulary,
                                        const std::vector<double>& units) {
  std::vector<std::int32_t> tokens(units.size());
  const float* rows = logits.const_data_ptr<float>();
  const std::int64_t width = logits.size(1);
  at::parallel_for(0, std::ssize(units), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto r = static_cast<std::size_t>(row);
      tokens[r] = sample_token(rows + row * width, vocabulary, units[r]);
    }
  });
  return tokens;
}

}  // namespace oscar
