#include "report/sample_statistics.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace oscar {

double quantile_sorted(std::span<const double> sorted, double fraction) {
  if (fraction <= 0.0) return sorted.front();
  if (fraction >= 1.0) return sorted.back();
  const double rank = fraction * static_cast<double>(sorted.size() - 1);
  const auto lower = static_cast<std::size_t>(rank);
  const double weight = rank - static_cast<double>(lower);
  const std::size_t upper = std::min(lower + 1, sorted.size() - 1);
  return (1.0 - weight) * sorted[lower] + weight * sorted[upper];
}

MeanAndError mean_and_error(std::span<const double> values) {
  if (values.empty()) return {};
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double v : values) sum += v;
  const double mean = sum / n;
  if (values.size() < 2) return {mean, 0.0};
  double squares = 0;  // central, so nothing cancels when the spread is small relative to the mean
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, std::sqrt(squares / n / (n - 1))};
}

double proportion_error(double p, std::int64_t n) {
  if (n < 2) return 0.0;
  return std::sqrt(std::max(0.0, p * (1.0 - p)) / static_cast<double>(n - 1));
}

Interval wilson_interval(std::int64_t successes, std::int64_t n) {
  if (n <= 0) return {0.0, 1.0};
  constexpr double z = kNormalQuantile;
  const double count = static_cast<double>(n), p = static_cast<double>(successes) / count;
  const double scale = 1.0 / (1.0 + z * z / count), middle = p + z * z / (2.0 * count);
  const double half = z * std::sqrt(p * (1.0 - p) / count + z * z / (4.0 * count * count));
  return {successes == 0 ? 0.0 : scale * (middle - half), successes == n ? 1.0 : scale * (middle + half)};
}

std::optional<Interval> bootstrap_mean(std::span<const SequenceSum> sequences, const BootstrapOptions& options) {
  const std::size_t count = sequences.size();
  if (count < 2 || options.samples < 2) return std::nullopt;
  std::vector<double> means;
  means.reserve(static_cast<std::size_t>(options.samples));
  for (std::int64_t sample = 0; sample < options.samples; ++sample) {
    double sum = 0;
    std::int64_t tokens = 0;
    for (std::size_t draw = 0; draw < count; ++draw) {
      const double u = random_unit(options.seed, static_cast<std::uint64_t>(sample), draw);
      const SequenceSum& chosen =
          sequences[std::min(static_cast<std::size_t>(u * static_cast<double>(count)), count - 1)];
      sum += chosen.sum;
      tokens += chosen.count;
    }
    if (tokens > 0) means.push_back(sum / static_cast<double>(tokens));
  }
  if (means.size() < 2) return std::nullopt;
  std::sort(means.begin(), means.end());
  const double tail = (1.0 - options.level) / 2.0;
  return Interval{quantile_sorted(means, tail), quantile_sorted(means, 1.0 - tail)};
}

}  // namespace oscar
