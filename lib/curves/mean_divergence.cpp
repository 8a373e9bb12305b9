#include "curves/mean_divergence.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/parallel.h"
#include "curves/row_divergence.h"

namespace oscar {
namespace {

// FP32 logits of a block: as many as the caches of two cores hold, on a GPU more. With a large vocabulary enough rows
// that a product does not wait for the weights of the head: with 16 rows a row of Gemma's head takes 2.6 times as long.
std::int64_t block_rows(std::int64_t vocabulary, at::Device device) {
  const std::int64_t bytes = device.is_cuda() ? std::int64_t{512} << 20 : std::int64_t{4} << 20;
  return std::clamp<std::int64_t>(bytes / (4 * std::max<std::int64_t>(vocabulary, 1)), kLeastLogitRows, 4096);
}

// Row-by-row sum of a b: [R, V] x [R, V] -> [R].
at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b) {
  return at::bmm(a.unsqueeze(1), b.unsqueeze(2)).flatten();
}

}  // namespace

at::Tensor capped_change(double cap, at::Tensor change, const std::function<at::Tensor()>& base) {
  if (cap <= 0.0) return change;
  const at::Tensor t = base().div_(cap), u = change / cap;
  return change.mul_(1.0 - t.square()).div_(u.mul_(t).add_(1.0));
}

at::Tensor summed_divergence(const at::Tensor& p, at::Tensor change) {
  if (p.is_cpu()) {
    const std::int64_t rows = p.size(0), vocabulary = p.size(1);
    const at::Tensor dense = p.contiguous(), changed = change.contiguous();
    const float *weights = dense.const_data_ptr<float>(), *changes = changed.const_data_ptr<float>();
    at::Tensor kl = at::empty({rows}, at::TensorOptions().dtype(at::kDouble));
    auto* out = kl.mutable_data_ptr<double>();
    parallel_ranges(rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        out[r] = row_divergence(weights + r * vocabulary, changes + r * vocabulary, vocabulary);
      }
    });
    return kl.sum();
  }
  const at::Tensor mass = p.sum(-1), mean = row_dots(p, change).div_(mass);
  // A common shift of all logits gives the same distribution. After subtracting the mean, sum p e^D - 1 is of second
  // order, and expm1 keeps it separate from the rounding of the 1.
  const at::Tensor excess = row_dots(p, change.sub_(mean.unsqueeze(-1)).expm1_()).div_(mass);
  return excess.log1p_().clamp_min_(0.0).sum(at::kDouble);
}

std::vector<double> means_of(const std::vector<at::Tensor>& sums, std::int64_t rows, const std::string& where) {
  std::vector<double> means;
  const at::Tensor found = at::stack(sums).cpu();
  for (std::int64_t i = 0; i < found.size(0); ++i) {
    const double mean = found.const_data_ptr<double>()[i] / static_cast<double>(rows);
    if (!std::isfinite(mean)) throw NumericalError("the KL of " + where + " is not finite (NaN or infinity)");
    means.push_back(mean);
  }
  return means;
}

void DivergenceBaseline::keep_probabilities(const Decoder& decoder) {
  if (probabilities.defined()) return;
  const std::int64_t rows = hidden.size(0), step = block_rows(decoder.config().vocabulary, hidden.device());
  probabilities = at::empty({rows, decoder.config().vocabulary}, hidden.options().dtype(at::kFloat));
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    at::Tensor block = probabilities.narrow(0, first, count);
    at::_softmax_out(block, decoder.logits(hidden.narrow(0, first, count)), -1, false);
  }
}

std::vector<double> mean_divergences(const Decoder& decoder, const DivergenceBaseline& baseline,
                                     const std::vector<at::Tensor>& versions, const std::string& where) {
  const at::Tensor& hidden = baseline.hidden;
  const std::int64_t rows = hidden.size(0), step = block_rows(decoder.config().vocabulary, hidden.device());
  const at::Tensor zero = at::zeros({}, hidden.options().dtype(at::kDouble));
  std::vector<at::Tensor> sums(versions.size(), zero);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const at::Tensor base = hidden.narrow(0, first, count);
    const at::Tensor p = baseline.probabilities.defined() ? baseline.probabilities.narrow(0, first, count)
                                                          : at::softmax(decoder.logits(base), -1);
    for (std::size_t v = 0; v < versions.size(); ++v) {
      at::Tensor change = decoder.logits(versions[v].narrow(0, first, count) - base);
      change = capped_change(decoder.config().final_soft_cap, change, [&] { return decoder.logits(base); });
      sums[v] = sums[v] + summed_divergence(p, change);
    }
  }
  return means_of(sums, rows, where);
}

}  // namespace oscar
