#include "rotation/width_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oscar {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

bool before(const WidthStep& a, const WidthStep& b) {
  if (a.level != b.level) return a.level > b.level;
  if (a.place != b.place) return a.place < b.place;
  return a.block != b.block ? a.block < b.block : a.width < b.width;
}

// Whether `step` is behind `earlier` on the way of the same block.
bool same_way(const WidthStep& step, const WidthStep& earlier) {
  return step.place == earlier.place && step.block == earlier.block;
}

}  // namespace

std::vector<Widths> climb(std::vector<WidthStep> steps, std::size_t places, int head_dim, double bits) {
  require_budget(bits, head_dim);
  std::stable_sort(steps.begin(), steps.end(), before);
  std::vector<Widths> widths(places, Widths{});
  std::vector<WidthStep> refused;
  std::size_t left = rows_budget(places, head_dim, bits);
  for (const WidthStep& step : steps) {
    if (step.level == kNever) break;
    if (std::any_of(refused.begin(), refused.end(), [&](const WidthStep& r) { return same_way(step, r); })) continue;
    Widths& now = widths[step.place];
    Widths next = now;
    if (step.block == kWholeSide) {
      next.fill(step.width);
    } else {
      next[static_cast<std::size_t>(step.block)] = step.width;
    }
    const std::size_t cost = row_bits(next, head_dim) - row_bits(now, head_dim);
    if (cost > left) {
      refused.push_back(step);
      continue;
    }
    left -= cost;
    now = next;
  }
  return widths;
}

double water_level(std::vector<double> variances, double mean_bits) {
  std::sort(variances.begin(), variances.end(), std::greater<>());
  // Sum over the k channels above the level of (log2 v - t) / 2 = N mean_bits: the level t for the k that fits.
  double sum = 0.0, level = kNever;
  for (std::size_t k = 1; k <= variances.size() && variances[k - 1] > 0.0; ++k) {
    const double log_variance = std::log2(variances[k - 1]);
    if (k > 1 && log_variance <= level) break;  // this channel is under water
    sum += log_variance;
    level = (sum - 2.0 * mean_bits * static_cast<double>(variances.size())) / static_cast<double>(k);
  }
  return level;
}

}  // namespace oscar
