#include "fit/regret.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/errors.h"
#include "fit/key_center.h"
#include "fit/metric_fit.h"
#include "fit/waterfill.h"
#include "transform/profile_allocation.h"

namespace oscar {
namespace {

constexpr double kLeastBudget = 0.25;  // least that allocate_profiles() accepts; a fit may use less

double trace_of(const at::Tensor& matrix) { return matrix.diagonal().sum().item<double>(); }

at::Tensor wide(const at::Tensor& matrices, std::int64_t head) {
  return matrices[matrices.size(0) == 1 ? 0 : head].to(at::kDouble);
}

// Noise of a code of w bits relative to the rows of its block.
double noise_share(int width, Side side) {
  return side == Side::kKey ? unbiased_distortion(width) : band_distortion(width);
}

// One head in the cache basis: second moments of its rows, metric of their errors, plain queries.
struct HeadBasis {
  at::Tensor rows, metric, queries;  // [d, d] FP64; queries include the scale of the logits
};

// Second moment of the rows of head h about the transform's own mean. Uncentered moments already contain it.
at::Tensor about_own_mean(const SideTransform& t, const SideMoments& m, std::int64_t h) {
  if (!t.mean.defined()) return m.covariance[h];
  const at::Tensor shift = m.mean[h] - t.mean[h].to(at::kDouble);
  if (!t.rotated_mean) return m.covariance[h] + at::outer(shift, shift);
  // Means before RoPE: their difference rotates with the position, and over many positions each plane is isotropic.
  const at::Tensor planes = shift.square().view({2, -1}).mean(0);
  return m.covariance[h] + at::diag(at::cat({planes, planes}));
}

HeadBasis in_basis(const SideTransform& t, Side side, const SideMoments& m, const at::Tensor& query_moment,
                   std::int64_t h) {
  const at::Tensor forward = wide(t.forward, h), back = wide(t.back(side), h);
  HeadBasis b;
  b.rows = at::matmul(forward.t(), at::matmul(about_own_mean(t, m, h), forward));
  if (side == Side::kKey) {
    b.metric = at::matmul(back.t(), at::matmul(m.metric[h], back));
    b.queries = at::matmul(back.t(), at::matmul(query_moment[h], back));
  } else {
    b.metric = at::matmul(back, at::matmul(m.metric[h], back.t()));
  }
  return b;
}

double head_error(const HeadBasis& basis, const std::vector<std::uint8_t>& widths, Side side) {
  const std::int64_t d = basis.rows.size(0);
  const std::vector<std::uint8_t> one = {2};  // layout uniform: the full head at 2 bits
  const std::vector<std::uint8_t>& blocks = widths.empty() ? one : widths;
  const std::int64_t n = d / static_cast<std::int64_t>(blocks.size());
  double error = 0.0, noise = 0.0;
  std::vector<std::int64_t> lost;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::int64_t first = static_cast<std::int64_t>(b) * n;
    if (blocks[b] == 0) {
      for (std::int64_t i = first; i < first + n; ++i) lost.push_back(i);
      continue;
    }
    const auto block = [&](const at::Tensor& m) { return trace_of(m.narrow(0, first, n).narrow(1, first, n)); };
    const double power = noise_share(blocks[b], side) * block(basis.rows) / static_cast<double>(n);
    error += power * block(basis.metric);
    if (side == Side::kKey) noise += power * block(basis.queries);
  }
  if (!lost.empty()) {
    const at::Tensor channels = at::tensor(at::ArrayRef<std::int64_t>(lost), at::kLong);
    const auto part = [&](const at::Tensor& m) { return m.index_select(0, channels).index_select(1, channels); };
    error += std::max((part(basis.rows) * part(basis.metric)).sum().item<double>(), 0.0);
  }
  return error * logit_noise_factor(noise);
}

std::vector<HeadBasis> bases(const SideTransform& t, Side side, const SideMoments& m, const at::Tensor& query_moment) {
  std::vector<HeadBasis> heads;
  for (std::int64_t h = 0; h < m.mean.size(0); ++h) heads.push_back(in_basis(t, side, m, query_moment, h));
  return heads;
}

double side_error(const std::vector<HeadBasis>& heads, const std::vector<std::uint8_t>& widths, Side side,
                  double residual) {
  double error = 0.0;
  for (const HeadBasis& head : heads) error += head_error(head, widths, side);
  return error / residual;
}

std::vector<std::uint8_t> as_vector(const Widths& widths) { return {widths.begin(), widths.end()}; }

// Errors of a new transform with each falling profile. Channels of a fit are in descending order, so no other profile
// can be best.
std::vector<ProfilePoint> profile_errors(const std::vector<HeadBasis>& heads, Side side, double residual) {
  std::vector<ProfilePoint> points;
  for (const Widths& widths : falling_profiles()) {
    points.push_back({widths, side_error(heads, as_vector(widths), side, residual)});
  }
  return points;
}

Widths widths_of(const SideTransform& t) { return {t.widths.at(0), t.widths.at(1), t.widths.at(2), t.widths.at(3)}; }

void require_usable(const std::vector<LayerTransform>& bundle, const Statistics& s) {
  if (bundle.size() != s.layers.size()) {
    throw InputError("the bundle has " + std::to_string(bundle.size()) + " layers and the statistics " +
                     std::to_string(s.layers.size()) + ": they are of different models");
  }
  for (const LayerTransform& layer : bundle) {
    if (layer.head_dim != s.head_dim || layer.kv_heads != s.kv_heads) {
      throw InputError("the bundle has " + std::to_string(layer.kv_heads) + " KV heads of size " +
                       std::to_string(layer.head_dim) + " and the statistics " + std::to_string(s.kv_heads) +
                       " of size " + std::to_string(s.head_dim) + ": they are of different models");
    }
    if (layer.key.orthogonal() || layer.value.orthogonal()) {
      throw InputError(
          "the bundle's transforms are orthogonal, and what 2-bit codes lose in them does not follow from second "
          "moments: check bundles of --method balanced or waterfill, or run oscar-verify on the new text");
    }
  }
}

}  // namespace

double SideRegret::ratio() const {
  if (refit > 0.0) return bundle / refit;
  return bundle > 0.0 ? std::numeric_limits<double>::infinity() : 1.0;
}

double predicted_side_error(const SideTransform& transform, const std::vector<std::uint8_t>& widths, Side side,
                            const SideMoments& moments, const at::Tensor& query_moment, double residual) {
  return side_error(bases(transform, side, moments, query_moment), widths, side, residual);
}

Regret measure_regret(const std::vector<LayerTransform>& bundle, const Statistics& s, const FitOptions& options) {
  require_usable(bundle, s);
  Regret out;
  out.metric = used_metric(s, options.metric);
  std::vector<std::string> warnings;  // warnings of the new fit, which serves only for comparison
  const int d = static_cast<int>(s.head_dim);
  std::vector<std::vector<ProfilePoint>> places;  // of the sides with layout blocks
  double bits = 0.0, uniform = 0.0;               // total bits of these places; errors of the other sides
  for (const LayerTransform& layer : bundle) out.layers.push_back({layer.layer, {}, {}});
  for (const Side side : {Side::kKey, Side::kValue}) {
    const auto of = [side](const LayerTransform& layer) -> const SideTransform& {
      return side == Side::kKey ? layer.key : layer.value;
    };
    const bool blocks =
        std::any_of(bundle.begin(), bundle.end(), [&](const LayerTransform& layer) { return of(layer).blocks(); });
    const std::vector<SideMoments> fresh = fitted_moments(s, options, side, blocks);
    const std::vector<MetricSide> fitted = fit_metric_side(s, options, side, blocks, fresh, warnings);
    for (std::size_t i = 0; i < bundle.size(); ++i) {
      const SideTransform& old = of(bundle[i]);
      const MomentChoice choice = moment_choice(options, options.value_target, old.mean.defined(), old.rotated_mean);
      const bool same =
          old.mean.defined() == fitted[i].transform.mean.defined() && old.rotated_mean == fresh[i].rotated;
      const SideMoments moments = same ? fresh[i] : side_moments(s, i, side, choice);
      const at::Tensor query_moment = side == Side::kKey ? logit_moment(s, i, choice.served) : at::Tensor();
      const double residual = residual_power(s, i);
      const std::vector<HeadBasis> heads = bases(fitted[i].transform, side, moments, query_moment);
      SideRegret& regret = side == Side::kKey ? out.layers[i].key : out.layers[i].value;
      regret.bundle = predicted_side_error(old, old.widths, side, moments, query_moment, residual);
      regret.refit = side_error(heads, old.widths, side, residual);
      if (old.blocks()) {
        bits += profile_bits(widths_of(old), d);
        places.push_back(profile_errors(heads, side, residual));
      } else {
        uniform += regret.refit;
      }
      out.total.bundle += regret.bundle;
      out.total.refit += regret.refit;
    }
  }
  out.moved = out.total.refit;
  if (!places.empty()) {
    const double budget = std::max(bits / static_cast<double>(places.size()), kLeastBudget);
    const std::vector<std::size_t> chosen = allocate_profiles(places, d, budget);
    double error = uniform;
    for (std::size_t p = 0; p < places.size(); ++p) error += places[p][chosen[p]].error;
    out.moved = std::min(out.moved, error);
  }
  return out;
}

}  // namespace oscar
