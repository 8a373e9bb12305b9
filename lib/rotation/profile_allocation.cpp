#include "rotation/profile_allocation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/errors.h"

namespace oscar {
namespace {

constexpr int kUnit = 8;  // bits: what a row costs is a multiple of it
constexpr std::array<std::uint8_t, 4> kWidths = {0, 1, 2, 4};
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Units that one row of a profile takes.
std::size_t units_of(const Widths& widths, int head_dim) {
  std::size_t bits = 0;
  for (const std::uint8_t width : widths) {
    if (width > 0) bits += width * static_cast<std::size_t>(head_dim / kBlocks) + 8;
  }
  return bits / kUnit;
}

std::vector<Widths> all_falling() {
  std::vector<Widths> profiles;
  for (const std::uint8_t a : kWidths) {
    for (const std::uint8_t b : kWidths) {
      for (const std::uint8_t c : kWidths) {
        for (const std::uint8_t d : kWidths) {
          if (a >= b && b >= c && c >= d) profiles.push_back({a, b, c, d});
        }
      }
    }
  }
  return profiles;
}

void require_places(const std::vector<std::vector<ProfilePoint>>& places, int head_dim) {
  if (head_dim <= 0 || head_dim % (kUnit * kBlocks) != 0) throw std::invalid_argument("head_dim is no multiple of 32");
  if (places.empty()) throw std::invalid_argument("no places to share bits among");
  for (const std::vector<ProfilePoint>& place : places) {
    if (place.empty()) throw std::invalid_argument("a place without candidates");
    for (const ProfilePoint& point : place) {
      if (std::isnan(point.error)) throw std::invalid_argument("the error of a width profile is NaN");
    }
  }
}

}  // namespace

std::string bits_text(double bits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", bits);
  return text;
}

const std::vector<Widths>& falling_profiles() {
  static const std::vector<Widths> profiles = all_falling();
  return profiles;
}

double profile_bits(const Widths& widths, int head_dim) { return block_code(head_dim, widths).bits_per_element(); }

void require_budget(double bits, int head_dim) {
  constexpr double kLeast = 0.25;
  const double most = profile_bits({4, 4, 4, 4}, head_dim);
  if (bits >= kLeast && bits <= most + 1e-9) return;
  throw UsageError("--bits " + bits_text(bits) + " is not possible with block widths and head size " +
                   std::to_string(head_dim) + "; choose from " + bits_text(kLeast) + " to " + bits_text(most) +
                   " (four bits everywhere)");
}

std::vector<std::size_t> allocate_profiles(const std::vector<std::vector<ProfilePoint>>& places, int head_dim,
                                           double bits) {
  require_places(places, head_dim);
  require_budget(bits, head_dim);
  const double elements = static_cast<double>(places.size()) * head_dim;
  const std::size_t size = static_cast<std::size_t>(bits * elements + 1e-6) / kUnit + 1;
  std::vector<double> best(size, 0.0), next(size);  // least error of the places so far within u units
  std::vector<std::vector<std::uint32_t>> chosen;   // [place][u]: the candidate behind it
  for (const std::vector<ProfilePoint>& place : places) {
    std::fill(next.begin(), next.end(), kInfinite);
    std::vector<std::uint32_t>& row = chosen.emplace_back(size, 0);
    for (std::size_t c = 0; c < place.size(); ++c) {
      const std::size_t cost = units_of(place[c].widths, head_dim);
      for (std::size_t u = cost; u < size; ++u) {
        const double total = best[u - cost] + place[c].error;
        if (total < next[u]) next[u] = total, row[u] = static_cast<std::uint32_t>(c);
      }
    }
    best.swap(next);
  }
  // best[] does not increase: the first entry of least error is the cheapest.
  auto u = static_cast<std::size_t>(std::min_element(best.begin(), best.end()) - best.begin());
  if (best[u] == kInfinite) {
    throw UsageError("no choice of the width profiles on offer fits into --bits " + bits_text(bits) + "; raise it");
  }
  std::vector<std::size_t> choice(places.size());
  for (std::size_t p = places.size(); p-- > 0;) {
    choice[p] = chosen[p][u];
    u -= units_of(places[p][choice[p]].widths, head_dim);
  }
  return choice;
}

}  // namespace oscar
