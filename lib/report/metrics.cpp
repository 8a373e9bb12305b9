#include "report/metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/errors.h"

namespace oscar {
namespace {

std::vector<double> gather(const std::vector<SequenceScores>& sequences,
                           const std::function<double(const SequenceScores&, std::size_t)>& value) {
  std::vector<double> all;
  for (const SequenceScores& s : sequences) {
    for (std::size_t t = 0; t < s.kl.size(); ++t) all.push_back(value(s, t));
  }
  return all;
}

std::vector<SequenceSum> sums(const std::vector<SequenceScores>& sequences,
                              const std::function<double(const SequenceScores&, std::size_t)>& value) {
  std::vector<SequenceSum> result;
  for (const SequenceScores& s : sequences) {
    SequenceSum one;
    for (std::size_t t = 0; t < s.kl.size(); ++t) one.sum += value(s, t);
    one.count = static_cast<std::int64_t>(s.kl.size());
    result.push_back(one);
  }
  return result;
}

KlMetrics summarize_kl(const std::vector<SequenceScores>& sequences, const BootstrapOptions& options) {
  const auto kl_of = [](const SequenceScores& s, std::size_t t) { return s.kl[t]; };
  std::vector<double> values = gather(sequences, kl_of);
  const MeanAndError mean = mean_and_error(values);
  std::sort(values.begin(), values.end());
  KlMetrics kl{.mean = mean.mean,
               .standard_error = mean.standard_error,
               .min = values.front(),
               .p001 = quantile_sorted(values, 0.001),
               .p01 = quantile_sorted(values, 0.01),
               .p05 = quantile_sorted(values, 0.05),
               .p10 = quantile_sorted(values, 0.1),
               .median = quantile_sorted(values, 0.5),
               .p90 = quantile_sorted(values, 0.9),
               .p95 = quantile_sorted(values, 0.95),
               .p99 = quantile_sorted(values, 0.99),
               .p999 = quantile_sorted(values, 0.999),
               .max = values.back()};
  const std::vector<SequenceSum> parts = sums(sequences, kl_of);
  kl.interval = bootstrap_mean(parts, options);
  std::vector<std::vector<double>> by_token;
  for (const SequenceScores& s : sequences) by_token.push_back(s.kl);
  kl.p999_interval = bootstrap_quantile(by_token, 0.999, options);
  for (const SequenceSum& s : parts) kl.by_sequence.push_back(s.count > 0 ? s.sum / static_cast<double>(s.count) : 0.0);
  return kl;
}

DeltaPMetrics summarize_delta_p(const std::vector<SequenceScores>& sequences) {
  std::vector<double> values = gather(sequences, [](const SequenceScores& s, std::size_t t) {
    return 100.0 * (std::exp(-s.nll[t]) - std::exp(-s.baseline_nll[t]));
  });
  DeltaPMetrics d;
  const MeanAndError mean = mean_and_error(values);
  d.mean = mean.mean;
  d.standard_error = mean.standard_error;
  std::vector<double> squares(values);
  for (double& v : squares) v *= v;
  const MeanAndError square = mean_and_error(squares);
  d.rms = std::sqrt(square.mean);
  d.rms_error = d.rms > 0 ? 0.5 * square.standard_error / d.rms : 0.0;
  std::sort(values.begin(), values.end());
  const auto at = [&](double fraction) { return quantile_sorted(values, fraction); };
  d.min = values.front();
  d.p001 = at(0.001), d.p01 = at(0.01), d.p05 = at(0.05), d.p10 = at(0.1), d.p25 = at(0.25);
  d.median = at(0.5);
  d.p75 = at(0.75), d.p90 = at(0.9), d.p95 = at(0.95), d.p99 = at(0.99), d.p999 = at(0.999);
  d.max = values.back();
  return d;
}

// Correlation of the two likelihoods over tokens, and the difference of perplexities with its error. Moments are
// central, so nothing cancels.
void compare_likelihoods(const std::vector<SequenceScores>& sequences, QualityMetrics& m) {
  const MeanAndError base =
      mean_and_error(gather(sequences, [](const SequenceScores& s, std::size_t t) { return s.baseline_nll[t]; }));
  double qq = 0, bb = 0, qb = 0;
  for (const SequenceScores& s : sequences) {
    for (std::size_t t = 0; t < s.nll.size(); ++t) {
      const double q = s.nll[t] - m.nll, b = s.baseline_nll[t] - base.mean;
      qq += q * q, bb += b * b, qb += q * b;
    }
  }
  m.ln_ppl_correlation = qq > 0 && bb > 0 ? std::clamp(qb / std::sqrt(qq * bb), -1.0, 1.0) : 1.0;
  const double base_ppl = std::exp(base.mean), n = static_cast<double>(m.tokens);
  m.ppl_difference = m.ppl - base_ppl;
  const double variance = m.ppl * m.ppl * qq + base_ppl * base_ppl * bb - 2 * m.ppl * base_ppl * qb;
  m.ppl_difference_error = m.tokens > 1 ? std::sqrt(std::max(0.0, variance) / n / (n - 1)) : 0.0;
}

}  // namespace

std::vector<SequenceScores> scores_from(std::vector<SequenceScores> scores, std::int64_t first_position,
                                        std::int64_t sequences) {
  scores.resize(std::min(scores.size(), static_cast<std::size_t>(sequences)));
  for (SequenceScores& s : scores) {
    const auto skip = std::min(std::ssize(s.kl), std::max<std::int64_t>(0, first_position - s.first_position));
    s.first_position += skip;
    for (auto* values : {&s.baseline_nll, &s.nll, &s.kl}) values->erase(values->begin(), values->begin() + skip);
    s.same_top.erase(s.same_top.begin(), s.same_top.begin() + skip);
  }
  return scores;
}

QualityMetrics summarize(const std::vector<SequenceScores>& sequences, const BootstrapOptions& options) {
  const auto nll_of = [](const SequenceScores& s, std::size_t t) { return s.nll[t]; };
  const auto difference = [](const SequenceScores& s, std::size_t t) { return s.nll[t] - s.baseline_nll[t]; };
  QualityMetrics m;
  for (const SequenceScores& s : sequences) m.tokens += static_cast<std::int64_t>(s.kl.size());
  if (m.tokens == 0) throw InputError("no token was scored: the text leaves no position outside the BF16 windows");

  const MeanAndError nll = mean_and_error(gather(sequences, nll_of));
  m.nll = nll.mean;
  m.nll_error = nll.standard_error;
  m.ppl = std::exp(m.nll);
  m.ppl_error = m.ppl * m.nll_error;

  const MeanAndError ratio = mean_and_error(gather(sequences, difference));
  m.ln_ppl_ratio = ratio.mean;
  m.ln_ppl_ratio_error = ratio.standard_error;
  m.ppl_ratio = std::exp(ratio.mean);
  m.ppl_ratio_error = m.ppl_ratio * ratio.standard_error;
  if (const auto interval = bootstrap_mean(sums(sequences, difference), options)) {
    m.ppl_ratio_interval = Interval{std::exp(interval->low), std::exp(interval->high)};
  }

  compare_likelihoods(sequences, m);
  m.kl = summarize_kl(sequences, options);
  m.delta_p = summarize_delta_p(sequences);
  std::int64_t same = 0;
  for (const SequenceScores& s : sequences) same += std::count(s.same_top.begin(), s.same_top.end(), 1);
  m.same_top1 = static_cast<double>(same) / static_cast<double>(m.tokens);
  m.same_top1_error = proportion_error(m.same_top1, m.tokens);
  m.same_top1_interval = bootstrap_mean(
      sums(sequences, [](const SequenceScores& s, std::size_t t) { return 1.0 * s.same_top[t]; }), options);
  return m;
}

std::vector<PositionBucket> kl_by_position(const std::vector<SequenceScores>& sequences, std::int64_t first,
                                           std::int64_t context, std::int64_t count) {
  std::vector<PositionBucket> buckets;
  if (context <= first || count < 1) return buckets;
  const std::int64_t width = (context - first + count - 1) / count;
  for (std::int64_t from = first; from < context; from += width) {
    buckets.push_back({from, std::min(from + width, context), 0, 0.0});
  }
  for (const SequenceScores& s : sequences) {
    for (std::size_t t = 0; t < s.kl.size(); ++t) {
      const std::int64_t position = s.first_position + static_cast<std::int64_t>(t);
      if (position < first || position >= context) continue;
      PositionBucket& bucket = buckets[static_cast<std::size_t>((position - first) / width)];
      bucket.kl += s.kl[t];
      ++bucket.tokens;
    }
  }
  std::erase_if(buckets, [](const PositionBucket& b) { return b.tokens == 0; });
  for (PositionBucket& b : buckets) b.kl /= static_cast<double>(b.tokens);
  return buckets;
}

double KlGrowth::ratio() const { return late / std::max(early, kLeastKl); }

std::optional<KlGrowth> kl_growth(const std::vector<PositionBucket>& by_position) {
  if (by_position.empty()) return std::nullopt;
  const double begin = static_cast<double>(by_position.front().from);
  const double quarter = 0.25 * (static_cast<double>(by_position.back().to) - begin);
  double kl[4] = {};
  std::int64_t tokens[4] = {};
  for (const PositionBucket& b : by_position) {
    const double middle = 0.5 * static_cast<double>(b.from + b.to);
    const int q = std::clamp(static_cast<int>((middle - begin) / quarter), 0, 3);
    kl[q] += b.kl * static_cast<double>(b.tokens), tokens[q] += b.tokens;
  }
  if (tokens[1] == 0 || tokens[3] == 0) return std::nullopt;
  return KlGrowth{kl[1] / static_cast<double>(tokens[1]), kl[3] / static_cast<double>(tokens[3]), tokens[1], tokens[3]};
}

}  // namespace oscar
