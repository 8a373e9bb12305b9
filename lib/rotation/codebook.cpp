#include "rotation/codebook.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace oscar {
namespace {

// Scores of points and centroids at once: few enough for a CPU's cache where there are up to 1,024 centroids.
constexpr std::int64_t kScores = std::int64_t{1} << 18;
constexpr std::int64_t kDeviceScores = std::int64_t{1} << 26;
constexpr float kLargestHalf = 65504.0f;

at::Tensor rounded_to(const at::Tensor& x, CentroidType type) {
  return x.to(at::kFloat).to(type == CentroidType::kFloat16 ? at::kHalf : at::kFloat8_e5m2).to(at::kFloat);
}

}  // namespace

double Codebook::bits_per_element(std::int64_t heads) const {
  return codebook_bits(static_cast<int>(channels()), first.size(2), second.defined() ? second.size(2) : 0, scale, heads,
                       first.size(1) * first.size(3));
}

std::uint64_t Codebook::bytes() const {
  const std::int64_t numbers = first.numel() + (second.defined() ? second.numel() : 0);
  return static_cast<std::uint64_t>(numbers) * (type == CentroidType::kFloat16 ? 2 : 1);
}

std::uint64_t Codebook::error_bytes() const {
  return errors.defined() ? 2 * static_cast<std::uint64_t>(errors.numel() + profile.numel()) : 0;
}

const char* to_string(RowScale scale) {
  constexpr const char* kNames[] = {"none", "token", "head"};
  return kNames[static_cast<std::size_t>(scale)];
}

const char* to_string(CentroidType type) { return type == CentroidType::kFloat16 ? "float16" : "float8_e5m2"; }

bool are_centroids(const at::Tensor& x, CentroidType type) { return at::equal(rounded_to(x, type), x); }

at::Tensor as_centroids(const at::Tensor& x, CentroidType type) {
  const at::Tensor rounded = rounded_to(x, type);
  if (!at::isfinite(rounded).all().item<bool>()) {
    throw NumericalError(std::string("a centroid is beyond what ") + to_string(type) + " can hold");
  }
  return rounded;
}

at::Tensor nearest_centroids(const at::Tensor& points, const at::Tensor& centroids) {
  const std::int64_t batch = points.size(0), count = points.size(1), size = centroids.size(1);
  const at::Tensor columns = centroids.transpose(1, 2).contiguous();  // [B, c, C]
  const at::Tensor half_norms = centroids.square().sum(2).mul_(0.5).unsqueeze(1);
  at::Tensor index = at::empty({batch, count}, points.options().dtype(at::kLong));
  if (points.is_cuda()) {
    const std::int64_t step = std::max<std::int64_t>(kDeviceScores / (batch * size), 1);
    for (std::int64_t i = 0; i < count; i += step) {
      const std::int64_t n = std::min(step, count - i);
      const at::Tensor scores = at::bmm(points.narrow(1, i, n), columns).sub_(half_norms);
      index.narrow(1, i, n).copy_(scores.argmax(2));
    }
    return index;
  }
  const std::int64_t step = std::clamp<std::int64_t>(kScores / size, 1, kPointsAtOnce);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < count; i += step) {
      const std::int64_t n = std::min(step, count - i);
      const at::Tensor scores = at::addmm(half_norms[b], points[b].narrow(0, i, n), columns[b], -1.0, 1.0);
      index[b].narrow(0, i, n).copy_(scores.argmax(1));
    }
  }
  return index;
}

at::Tensor points_of(const at::Tensor& rows, std::int64_t groups, bool shared) {
  const std::int64_t heads = rows.size(0), tokens = rows.size(1), c = rows.size(2) / groups;
  const at::Tensor split = rows.reshape({heads, tokens, groups, c});
  if (shared) return split.permute({2, 1, 0, 3}).reshape({groups, tokens * heads, c}).contiguous();
  return split.permute({0, 2, 1, 3}).reshape({heads * groups, tokens, c}).contiguous();
}

at::Tensor rows_of(const at::Tensor& points, at::IntArrayRef shape, bool shared) {
  const std::int64_t heads = shape[0], tokens = shape[1], c = points.size(2), groups = shape[2] / c;
  if (shared) return points.view({groups, tokens, heads, c}).permute({2, 1, 0, 3}).reshape(shape);
  return points.view({heads, groups, tokens, c}).permute({0, 2, 1, 3}).reshape(shape);
}

at::Tensor nearest_points(const at::Tensor& points, const at::Tensor& codebook, at::Tensor* index) {
  const std::int64_t c = points.size(2);
  const at::Tensor centroids = codebook.to(points.device()).reshape({points.size(0), codebook.size(2), c});
  const at::Tensor found = nearest_centroids(points, centroids);
  if (index != nullptr) *index = found;
  return centroids.gather(1, found.unsqueeze(2).expand({-1, -1, c}));
}

at::Tensor row_scales(const at::Tensor& rows, RowScale scale) {
  const at::Tensor squares = rows.to(at::kDouble).square();
  at::Tensor mean = squares.mean(2, true);
  if (scale == RowScale::kToken) mean = mean.mean(0, true);
  const at::Tensor root = mean.sqrt().to(at::kFloat).clamp_max(kLargestHalf).to(at::kHalf).to(at::kFloat);
  return at::where(root > 0, root, at::ones_like(root));
}

at::Tensor decode_encoded(const Codebook& codebook, const at::Tensor& rows, at::Tensor* errors) {
  const std::int64_t groups = codebook.first.size(1);
  const bool shared = codebook.first.size(0) == 1;
  at::Tensor scale;
  if (codebook.scale != RowScale::kNone) scale = row_scales(rows, codebook.scale);
  const at::Tensor points = points_of(scale.defined() ? rows / scale : rows, groups, shared);
  at::Tensor cell;
  at::Tensor found = nearest_points(points, codebook.first, &cell);
  if (errors != nullptr) {
    const std::int64_t batch = points.size(0);
    const at::Tensor of_cells = codebook.errors.to(rows.device()).reshape({batch, codebook.first.size(2)});
    const at::Tensor profile = codebook.profile.to(rows.device()).reshape({batch, 1, codebook.channels()});
    *errors = rows_of(of_cells.gather(1, cell).unsqueeze(2) * profile, rows.sizes(), shared);
    if (scale.defined()) *errors = *errors * scale.square();
  }
  if (codebook.second.defined()) found = found + nearest_points(points - found, codebook.second);
  const at::Tensor decoded = rows_of(found, rows.sizes(), shared);
  return scale.defined() ? decoded * scale : decoded;
}

}  // namespace oscar
