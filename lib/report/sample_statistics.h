// Order statistics, standard errors and bootstrap intervals of per-token values. Definitions follow llama.cpp's
// llama-perplexity where it has them, so that numbers are comparable.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace oscar {

// Linear interpolation between order statistics at rank f (n - 1) (numpy's default, llama.cpp's percentile).
// `sorted` is ascending and not empty.
double quantile_sorted(std::span<const double> sorted, double fraction);

struct MeanAndError {
  double mean = 0;
  double standard_error = 0;  // sqrt((E[x^2] - E[x]^2) / (n - 1)); 0 for n < 2
};
MeanAndError mean_and_error(std::span<const double> values);

// Standard error of a proportion of n trials: sqrt(p (1 - p) / (n - 1)); 0 for n < 2.
double proportion_error(double p, std::int64_t n);

struct Interval {
  double low = 0, high = 0;
};

// z of a two-sided 95 % interval: the 97.5 % quantile of the normal distribution.
inline constexpr double kNormalQuantile = 1.959963984540054;

// Wilson's 95 % interval of a proportion with `successes` of n independent trials (E. B. Wilson, JASA 22, 1927). It
// contains the p that differ from the observed share by at most z = 1.96 standard errors at p. It lies within [0, 1]
// and has positive width even if all or none succeed; [0, 1] for n = 0.
Interval wilson_interval(std::int64_t successes, std::int64_t n);

struct BootstrapOptions {
  std::int64_t samples = 2000;
  double level = 0.95;
  std::uint64_t seed = 0;
};

// One independent unit of the bootstrap: a complete sequence, because its tokens are correlated.
struct SequenceSum {
  double sum = 0;
  std::int64_t count = 0;
};

// Percentile bootstrap interval of (sum of sums) / (sum of counts), resampling sequences with replacement. Depends only
// on the seed (counter-based random numbers). Empty for fewer than two sequences.
std::optional<Interval> bootstrap_mean(std::span<const SequenceSum> sequences, const BootstrapOptions& options);

// The same for the quantile of all values, where sequences[s] has those of sequence s. `fraction` is near 1: the time
// of a sample grows with the number of values above it.
std::optional<Interval> bootstrap_quantile(const std::vector<std::vector<double>>& sequences, double fraction,
                                           const BootstrapOptions& options);

}  // namespace oscar
