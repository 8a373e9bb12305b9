#include "rotation/fit_sensitivity.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "rotation/side_moments.h"

namespace oscar {
namespace {

std::vector<double> numbers(const at::Tensor& values) {
  const at::Tensor flat = values.to(at::kDouble).contiguous().flatten();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

// [S, d] -> [4, S, d/4]: the channels of each block, of all matrices.
at::Tensor by_block(const at::Tensor& channels) {
  return channels.view({channels.size(0), kBands, channels.size(1) / kBands}).transpose(0, 1);
}

// f(side transform, is it keys', layer) for all places.
template <typename Function>
Sensitivities for_each_place(const FitResult& fit, const Function& f) {
  Sensitivities places;
  for (std::size_t layer = 0; layer < fit.layers.size(); ++layer) {
    places.push_back(f(fit.layers[layer].transform.key, true, layer));
    places.push_back(f(fit.layers[layer].transform.value, false, layer));
  }
  return places;
}

// lambda of a side, strongest first: [S, d].
at::Tensor lambda_of(const SideTransform& side) { return side.eigenvalues.to(at::kDouble).flip(1).clamp_min(0.0); }

}  // namespace

Sensitivities output_variances(const FitResult& fit) {
  return for_each_place(
      fit, [](const SideTransform& side, bool, std::size_t) { return numbers(by_block(lambda_of(side).square())); });
}

Sensitivities row_variances(const FitResult& fit) {
  return for_each_place(fit, [](const SideTransform& side, bool key, std::size_t) {
    // Channels of the cache have unit variance: row c of `back`, x = x' back, is what channel c adds to the row.
    const at::Tensor back = (key ? side.query_side : side.inverse).to(at::kDouble);
    return numbers(by_block(back.square().sum(key ? 1 : 2)).mean(2));
  });
}

Sensitivities side_losses(const Statistics& statistics, const FitResult& fit) {
  return for_each_place(fit, [&](const SideTransform& side, bool, std::size_t layer) {
    const double loss = lambda_of(side).square().sum().item<double>();
    return std::vector<double>{loss / residual_power(statistics, layer)};
  });
}

Sensitivities fit_sensitivities(const AllocatorRow& allocator, const Statistics& statistics, const FitResult& fit) {
  switch (allocator.measure) {
    case AllocatorMeasure::kOutputVariances:
      return output_variances(fit);
    case AllocatorMeasure::kRowVariances:
      return row_variances(fit);
    case AllocatorMeasure::kSideLosses:
      return side_losses(statistics, fit);
    default:
      break;
  }
  throw std::invalid_argument("allocator " + allocator.id + " takes no sensitivities from statistics");
}

}  // namespace oscar
