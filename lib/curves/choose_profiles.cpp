#include "curves/choose_profiles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace oscar {
namespace {

constexpr std::array<double, kAnchors> kAnchorBits = {0.8, 1.6, 2.6};

std::vector<double> bits_of_profiles(int head_dim) {
  std::vector<double> bits;
  for (const Widths& widths : latent_profiles()) bits.push_back(profile_bits(widths, head_dim));
  return bits;
}

// Lower convex hull of (bits, error), by ascending bits.
std::vector<std::size_t> lower_hull(const std::vector<double>& bits, const std::vector<double>& error) {
  std::vector<std::size_t> order(error.size()), hull;
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return bits[a] < bits[b] || (bits[a] == bits[b] && error[a] < error[b]);
  });
  for (const std::size_t i : order) {
    if (!hull.empty() && error[i] >= error[hull.back()]) continue;  // more bits without less error
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
  std::vector<std::size_t> chosen;
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

// Least measured KL within `most` bits; infinite if nothing was measured.
double best_measured(const SideKnowledge& side, const std::vector<double>& bits, double most) {
  double best = std::numeric_limits<double>::infinity();
  for (const MeasuredKl& m : side.measured) {
    if (bits[m.profile] <= most) best = std::min(best, m.kl);
  }
  return best;
}

}  // namespace

bool SideKnowledge::knows(std::size_t profile) const {
  return std::any_of(measured.begin(), measured.end(), [&](const MeasuredKl& m) { return m.profile == profile; });
}

std::vector<std::vector<std::size_t>> next_profiles(const std::vector<SideKnowledge>& sides, int head_dim,
                                                    const ChoiceOptions& options) {
  const std::vector<double> bits = bits_of_profiles(head_dim);
  std::vector<std::vector<std::size_t>> next(sides.size());
  bool first = false;
  for (std::size_t s = 0; s < sides.size(); ++s) {
    if (sides[s].measured.empty()) next[s] = anchors(sides[s], bits), first = true;
  }
  if (first) return next;

  std::vector<std::vector<ProfilePoint>> places;
  for (const SideKnowledge& side : sides) {
    const std::vector<double> kl = estimated_kl(side.predicted, side.measured, head_dim);
    std::vector<ProfilePoint>& place = places.emplace_back();
    for (std::size_t i = 0; i < kl.size(); ++i) place.push_back({latent_profiles()[i], kl[i]});
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
      if (votes[s][i] > 0 && !sides[s].knows(i)) next[s].push_back(i);
    }
    std::stable_sort(next[s].begin(), next[s].end(),
                     [&](std::size_t a, std::size_t b) { return votes[s][a] > votes[s][b]; });
    const std::size_t known = sides[s].measured.size();
    next[s].resize(std::min({next[s].size(), options.per_round, options.most - std::min(options.most, known)}));
    std::sort(next[s].begin(), next[s].end());
  }
  return next;
}

}  // namespace oscar
