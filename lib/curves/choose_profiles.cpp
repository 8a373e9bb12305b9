#include "curves/choose_profiles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace oscar {
namespace {

constexpr double kLeastKl = 1e-9;  // below it a KL is the rounding of its own sum
constexpr std::array<double, kAnchors - 1> kAnchorBits = {0.8, 1.6, 2.6};

std::vector<double> bits_of_profiles(int head_dim) {
  std::vector<double> bits;
  for (const Widths& widths : falling_profiles()) bits.push_back(profile_bits(widths, head_dim));
  return bits;
}

// Lower convex hull of (bits, error), by ascending bits.
std::vector<std::size_t> lower_hull(const std::vector<double>& bits, const std::vector<double>& error) {
  std::vector<std::size_t> order(bits.size()), hull;
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return bits[a] < bits[b] || (bits[a] == bits[b] && error[a] < error[b]);
  });
  for (const std::size_t i : order) {
    if (!hull.empty() && error[i] >= error[hull.back()]) continue;  // dearer and no better
    while (hull.size() > 1) {
      const std::size_t a = hull[hull.size() - 2], b = hull.back();
      if ((error[b] - error[a]) * (bits[i] - bits[a]) < (error[i] - error[a]) * (bits[b] - bits[a])) break;
      hull.pop_back();
    }
    hull.push_back(i);
  }
  return hull;
}

std::vector<std::size_t> anchors(const SideKnowledge& side, const std::vector<double>& bits) {
  const std::vector<std::size_t> hull = lower_hull(bits, side.predicted);
  std::vector<std::size_t> chosen{0};
  for (const double wanted : kAnchorBits) {
    const auto nearest = std::min_element(hull.begin(), hull.end(), [&](std::size_t a, std::size_t b) {
      return std::abs(bits[a] - wanted) < std::abs(bits[b] - wanted);
    });
    chosen.push_back(*nearest);
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

bool is_measured(const SideKnowledge& side) {
  return std::any_of(side.measured.begin(), side.measured.end(), [](const auto& m) { return m.has_value(); });
}

std::size_t count_measured(const SideKnowledge& side) {
  return static_cast<std::size_t>(
      std::count_if(side.measured.begin(), side.measured.end(), [](const auto& m) { return m.has_value(); }));
}

// Least KL that was measured within `most` bits; infinite where nothing was.
double best_measured(const SideKnowledge& side, const std::vector<double>& bits, double most) {
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (side.measured[i] && bits[i] <= most) best = std::min(best, *side.measured[i]);
  }
  return best;
}

}  // namespace

std::vector<double> estimated_kl(const SideKnowledge& side, int head_dim) {
  const std::vector<double> bits = bits_of_profiles(head_dim);
  // Logarithm of measured over predicted, by bits; of several profiles with equal bits the mean.
  std::map<double, std::pair<double, int>> sums;
  const auto logarithm = [](double x) { return std::log(std::max(x, kLeastKl)); };
  const double scale = *std::max_element(side.predicted.begin(), side.predicted.end());
  const auto predicted = [&](std::size_t i) { return scale > 0.0 ? std::max(side.predicted[i] / scale, 1e-12) : 1.0; };
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (!side.measured[i]) continue;
    auto& [sum, count] = sums[bits[i]];
    sum += logarithm(*side.measured[i]) - std::log(predicted(i));
    ++count;
  }
  std::vector<std::pair<double, double>> ratio;
  for (const auto& [b, entry] : sums) ratio.emplace_back(b, entry.first / entry.second);
  std::vector<double> estimate(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (side.measured[i]) {
      estimate[i] = *side.measured[i];
      continue;
    }
    const auto above = std::lower_bound(ratio.begin(), ratio.end(), std::pair(bits[i], -1e300));
    double r = above == ratio.end() ? ratio.back().second : above->second;
    if (above != ratio.begin() && above != ratio.end()) {
      const auto& below = *(above - 1);
      r = below.second + (above->second - below.second) * (bits[i] - below.first) / (above->first - below.first);
    }
    estimate[i] = std::exp(std::log(predicted(i)) + r);
  }
  return estimate;
}

std::vector<std::vector<std::size_t>> next_profiles(const std::vector<SideKnowledge>& sides, int head_dim,
                                                    const ChoiceOptions& options) {
  const std::vector<double> bits = bits_of_profiles(head_dim);
  std::vector<std::vector<std::size_t>> next(sides.size());
  bool first = false;
  for (std::size_t s = 0; s < sides.size(); ++s) {
    if (!is_measured(sides[s])) next[s] = anchors(sides[s], bits), first = true;
  }
  if (first) return next;

  std::vector<std::vector<ProfilePoint>> places;
  for (const SideKnowledge& side : sides) {
    const std::vector<double> kl = estimated_kl(side, head_dim);
    std::vector<ProfilePoint>& place = places.emplace_back();
    for (std::size_t i = 0; i < kl.size(); ++i) place.push_back({falling_profiles()[i], kl[i]});
  }
  std::vector<std::vector<int>> votes(sides.size(), std::vector<int>(bits.size(), 0));
  for (const double budget : options.budgets) {
    const std::vector<std::size_t> choice = allocate_profiles(places, head_dim, budget);
    double whole = 0.0;
    for (std::size_t s = 0; s < sides.size(); ++s) whole += places[s][choice[s]].error;
    for (std::size_t s = 0; s < sides.size(); ++s) {
      const double gain = best_measured(sides[s], bits, bits[choice[s]]) - places[s][choice[s]].error;
      if (gain > options.negligible * whole) ++votes[s][choice[s]];
    }
  }
  for (std::size_t s = 0; s < sides.size(); ++s) {
    for (std::size_t i = 0; i < bits.size(); ++i) {
      if (votes[s][i] > 0 && !sides[s].measured[i]) next[s].push_back(i);
    }
    std::stable_sort(next[s].begin(), next[s].end(),
                     [&](std::size_t a, std::size_t b) { return votes[s][a] > votes[s][b]; });
    const std::size_t known = count_measured(sides[s]);
    next[s].resize(std::min({next[s].size(), options.per_round, options.most - std::min(options.most, known)}));
    std::sort(next[s].begin(), next[s].end());
  }
  return next;
}

}  // namespace oscar
