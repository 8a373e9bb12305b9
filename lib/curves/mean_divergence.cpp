#include "curves/mean_divergence.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace oscar {
namespace {

// FP32 logits of a block: what two cores' caches hold, on a GPU more.
std::int64_t block_rows(std::int64_t vocabulary, at::Device device) {
  const std::int64_t bytes = device.is_cuda() ? std::int64_t{512} << 20 : std::int64_t{4} << 20;
  return std::clamp<std::int64_t>(bytes / (4 * std::max<std::int64_t>(vocabulary, 1)), 16, 4096);
}

// Row by row sum of a b: [R, V] x [R, V] -> [R].
at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b) {
  return at::bmm(a.unsqueeze(1), b.unsqueeze(2)).flatten();
}

}  // namespace

std::vector<double> mean_divergences(const Decoder& decoder, const at::Tensor& baseline,
                                     const std::vector<at::Tensor>& versions, const std::string& where) {
  const std::int64_t rows = baseline.size(0), step = block_rows(decoder.config().vocabulary, baseline.device());
  const at::Tensor zero = at::zeros({}, baseline.options().dtype(at::kDouble));
  std::vector<at::Tensor> sums(versions.size(), zero);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const at::Tensor base = baseline.narrow(0, first, count);
    const at::Tensor p = at::softmax(decoder.logits(base), -1), mass = p.sum(-1);
    for (std::size_t v = 0; v < versions.size(); ++v) {
      const at::Tensor change = decoder.logits(versions[v].narrow(0, first, count) - base);
      const at::Tensor mean = row_dots(p, change).div_(mass);
      // Logits that all move alike are the same distribution. With their mean taken off, what is left of sum p e^D
      // beside 1 is of second order, and expm1 keeps it apart from the rounding of that 1.
      const at::Tensor excess = row_dots(p, change.sub_(mean.unsqueeze(-1)).expm1_()).div_(mass);
      sums[v] = sums[v] + excess.log1p_().clamp_min_(0.0).sum(at::kDouble);
    }
  }
  std::vector<double> means;
  for (const at::Tensor& sum : sums) {
    const double mean = sum.item<double>() / static_cast<double>(rows);
    if (!std::isfinite(mean)) throw NumericalError("the KL of " + where + " is not finite (NaN or infinity)");
    means.push_back(mean);
  }
  return means;
}

}  // namespace oscar
