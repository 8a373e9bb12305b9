#include "rotation/codebook_points.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "rotation/codebook_basis.h"

namespace oscar {

CodebookPoints::CodebookPoints(const CodebookRows& rows, const SideTransform& transform, Side side,
                               const CodebookSide& spec, bool gradients, std::int64_t buffer)
    : rows_(rows), transform_(transform), side_(side), spec_(spec), gradients_(gradients) {
  const at::Tensor one = rows.read(0, 1);
  const std::int64_t bytes = 4 * one.numel() * (gradients ? 2 : 1);
  piece_ = std::max(buffer / bytes / kPointsAtOnce, std::int64_t{1}) * kPointsAtOnce;
  rows_each_ = spec.shared ? one.size(1) : 1;
}

Points CodebookPoints::block(std::int64_t first, std::int64_t n) const {
  at::Tensor x = to_basis(transform_, rows_.read(first, n)), weights;
  if (gradients_) weights = gradients_to_basis(transform_, side_, rows_.gradients(first, n));
  if (spec_.scale != RowScale::kNone) {
    const at::Tensor scale = row_scales(x, spec_.scale);
    x = x / scale;
    if (gradients_) weights = weights * scale.square();  // an error of x is `scale` times as large in a row
  }
  const std::int64_t groups = x.size(2) / spec_.channels;
  Points points{points_of(x, groups, spec_.shared), {}};
  if (gradients_) points.weights = points_of(weights, groups, spec_.shared).sum(2);
  return points;
}

Points CodebookPoints::read(std::int64_t first, std::int64_t n) const {
  std::vector<at::Tensor> points, weights;
  const std::int64_t begin = first / rows_each_, end = begin + n / rows_each_;
  for (std::int64_t row = begin; row < end; row += kPointsAtOnce) {
    Points part = block(row, std::min(kPointsAtOnce, end - row));
    points.push_back(std::move(part.points));
    if (gradients_) weights.push_back(std::move(part.weights));
  }
  return {at::cat(points, 1), gradients_ ? at::cat(weights, 1) : at::Tensor()};
}

Points ResidualPoints::read(std::int64_t first, std::int64_t n) const {
  Points points = points_.read(first, n);
  const at::Tensor on_device = points.points.to(device_);
  points.points = (on_device - nearest_points(on_device, codebook_)).cpu();
  return points;
}

void set_errors(Codebook& codebook, const PointSource& source, c10::Device device) {
  const std::int64_t heads = codebook.first.size(0), groups = codebook.first.size(1), size = codebook.first.size(2);
  at::Tensor sums = at::zeros({heads * groups, size}, at::kDouble), members = at::zeros_like(sums);
  at::Tensor of_channels = at::zeros({heads * groups, codebook.channels()}, at::kDouble);
  source.for_each_piece(nullptr, [&](std::int64_t, const Points& piece) {
    const at::Tensor points = piece.points.to(device);
    at::Tensor cell;
    at::Tensor left = points - nearest_points(points, codebook.first, &cell);
    if (codebook.second.defined()) left = left - nearest_points(left, codebook.second);
    const at::Tensor squares = left.square().cpu().to(at::kDouble), index = cell.cpu(), error = squares.mean(2);
    of_channels += squares.sum(1);
    sums.scatter_add_(1, index, error);
    members.scatter_add_(1, index, at::ones_like(error));
  });
  const at::Tensor mean = sums.sum(1, true) / members.sum(1, true).clamp_min(1.0);
  const at::Tensor errors = (sums + kPriorPoints * mean) / (members + kPriorPoints);
  constexpr double kLargestHalf = 65504.0;
  const auto stored = [&](const at::Tensor& x) {
    return x.clamp_max(kLargestHalf).to(at::kHalf).to(at::kFloat).view({heads, groups, -1}).contiguous();
  };
  codebook.errors = stored(errors);
  codebook.profile = stored((of_channels / of_channels.mean(1, true)).nan_to_num(1.0));
}

}  // namespace oscar
