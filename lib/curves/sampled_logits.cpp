#include "curves/sampled_logits.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "curves/mean_divergence.h"

namespace oscar {
namespace {

constexpr double kGoldenRatio = 0.6180339887498949;  // spreads the offsets of rows evenly

// Cumulative sums where the drawn tokens are: (i + offset of the row) / kDrawn of the whole, [rows, kDrawn] FP64.
at::Tensor marks(std::int64_t first, std::int64_t rows, const at::TensorOptions& options) {
  const at::Tensor row = at::arange(first, first + rows, options).mul_(kGoldenRatio);
  const at::Tensor offset = (row - row.floor()).unsqueeze(1);
  return (at::arange(kDrawn, options).unsqueeze(0) + offset).div_(static_cast<double>(kDrawn));
}

}  // namespace

std::int64_t gathered_row_bytes(const ModelConfig& model, std::int64_t element) {
  return (kLikely + kDrawn) * model.hidden * element;
}

std::int64_t gathered_bytes(at::Device device) {
  return device.is_cuda() ? std::int64_t{512} << 20 : std::int64_t{64} << 20;
}

SampledLogits sample_logits(const Decoder& decoder, const at::Tensor& hidden) {
  constexpr std::int64_t kRows = 64;
  std::vector<at::Tensor> tokens, weights;
  for (std::int64_t first = 0; first < hidden.size(0); first += kRows) {
    const std::int64_t count = std::min(kRows, hidden.size(0) - first);
    const at::Tensor p = at::softmax(decoder.logits(hidden.narrow(0, first, count)), -1);
    const auto [likely, at_likely] = at::topk(p, kLikely, -1);
    const at::Tensor rest = p.scatter(-1, at_likely, 0.0).cumsum(-1, at::kDouble);
    const at::Tensor mass = rest.slice(-1, rest.size(-1) - 1);
    const at::Tensor places = marks(first, count, mass.options()).mul_(mass);
    // Rounding may leave the last mark behind the sum.
    const at::Tensor drawn = at::searchsorted(rest, places, false, true).clamp_max_(p.size(-1) - 1);
    tokens.push_back(at::cat({at_likely, drawn}, -1));
    const at::Tensor each = mass.to(at::kFloat).div_(static_cast<double>(kDrawn)).expand({count, kDrawn});
    const at::Tensor all = at::cat({likely, each}, -1);
    weights.push_back(all / all.sum(-1, true));
  }
  return {at::cat(tokens), at::cat(weights)};
}

std::vector<double> sampled_divergences(const Decoder& decoder, const at::Tensor& hidden, const SampledLogits& sampled,
                                        const std::vector<at::Tensor>& versions, const std::string& where) {
  const std::int64_t rows = hidden.size(0);
  const auto element = static_cast<std::int64_t>(hidden.element_size());
  const std::int64_t step =
      std::max<std::int64_t>(1, gathered_bytes(hidden.device()) / gathered_row_bytes(decoder.config(), element));
  const at::Tensor zero = at::zeros({}, hidden.options().dtype(at::kDouble));
  std::vector<at::Tensor> sums(versions.size(), zero);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const at::Tensor base = hidden.narrow(0, first, count), tokens = sampled.tokens.narrow(0, first, count);
    std::vector<at::Tensor> steps;
    for (const at::Tensor& version : versions) steps.push_back(version.narrow(0, first, count) - base);
    const at::Tensor changes = decoder.logits_at(at::stack(steps, 1), tokens);  // [count, versions, tokens]
    const auto of_base = [&] { return decoder.logits_at(base.unsqueeze(1), tokens).squeeze(1); };
    const at::Tensor weights = sampled.weights.narrow(0, first, count);
    for (std::size_t v = 0; v < versions.size(); ++v) {
      const at::Tensor change = changes.select(1, static_cast<std::int64_t>(v)).contiguous();
      sums[v] = sums[v] + summed_divergence(weights, capped_change(decoder.config().final_soft_cap, change, of_base));
    }
  }
  return means_of(sums, rows, where);
}

}  // namespace oscar
