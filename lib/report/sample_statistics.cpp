#include "report/sample_statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

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

namespace {

// The interval of a statistic of `count` sequences drawn with replacement. of(drawn), with the number of times that
// each sequence was drawn; nullopt: the sample has no tokens.
template <typename Statistic>
std::optional<Interval> bootstrap(std::size_t count, const BootstrapOptions& options, const Statistic& of) {
  if (count < 2 || options.samples < 2) return std::nullopt;
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(options.samples));
  std::vector<std::int64_t> drawn(count);
  for (std::int64_t sample = 0; sample < options.samples; ++sample) {
    std::fill(drawn.begin(), drawn.end(), 0);
    for (std::size_t draw = 0; draw < count; ++draw) {
      const double u = random_unit(options.seed, static_cast<std::uint64_t>(sample), draw);
      ++drawn[std::min(static_cast<std::size_t>(u * static_cast<double>(count)), count - 1)];
    }
    if (const std::optional<double> value = of(drawn)) values.push_back(*value);
  }
  if (values.size() < 2) return std::nullopt;
  std::sort(values.begin(), values.end());
  const double tail = (1.0 - options.level) / 2.0;
  return Interval{quantile_sorted(values, tail), quantile_sorted(values, 1.0 - tail)};
}

}  // namespace

std::optional<Interval> bootstrap_mean(std::span<const SequenceSum> sequences, const BootstrapOptions& options) {
  return bootstrap(sequences.size(), options, [&](const std::vector<std::int64_t>& drawn) -> std::optional<double> {
    double sum = 0;
    std::int64_t tokens = 0;
    for (std::size_t s = 0; s < drawn.size(); ++s) {
      sum += static_cast<double>(drawn[s]) * sequences[s].sum;
      tokens += drawn[s] * sequences[s].count;
    }
    if (tokens == 0) return std::nullopt;
    return sum / static_cast<double>(tokens);
  });
}

std::optional<Interval> bootstrap_quantile(const std::vector<std::vector<double>>& sequences, double fraction,
                                           const BootstrapOptions& options) {
  std::vector<std::pair<double, std::size_t>> largest;  // every value with its sequence, descending
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (const double value : sequences[s]) largest.emplace_back(value, s);
  }
  std::sort(largest.begin(), largest.end(), std::greater<>());
  return bootstrap(sequences.size(), options, [&](const std::vector<std::int64_t>& drawn) -> std::optional<double> {
    std::int64_t count = 0;
    for (std::size_t s = 0; s < drawn.size(); ++s) count += drawn[s] * std::ssize(sequences[s]);
    if (count == 0) return std::nullopt;
    // Ranks from the top of the two values that quantile_sorted() lies between.
    const double rank = fraction * static_cast<double>(count - 1);
    const auto lower = count - 1 - static_cast<std::int64_t>(rank), upper = std::max<std::int64_t>(lower - 1, 0);
    const double weight = rank - std::floor(rank);
    std::int64_t above = 0;
    double high = 0;
    for (const auto& [value, sequence] : largest) {
      if (above <= upper) high = value;
      above += drawn[sequence];
      if (above > lower) return (1.0 - weight) * value + weight * high;
    }
    return std::nullopt;
  });
}

}  // namespace oscar
