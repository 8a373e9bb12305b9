#include "transform/profile_allocation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "base/errors.h"
#include "base/formatted.h"

namespace oscar {
namespace {

constexpr std::size_t kUnit = 8;  // bits: the cost of a row is a multiple of it
constexpr std::array<std::uint8_t, 4> kWidths = {0, 1, 2, 4};
constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::vector<Widths> with_refined(std::vector<Widths> profiles) {
  for (std::size_t i = 0, falling = profiles.size(); i < falling; ++i) {
    const Widths w = profiles[i];  // 4-a-b-0
    if (w[0] != 4 || w[3] != 0) continue;
    for (const std::uint8_t c : {1, 2, 4}) profiles.push_back({4, w[1], w[2], c, true});
  }
  return profiles;
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
  if (head_dim <= 0 || head_dim % (static_cast<int>(kUnit) * kBands) != 0)
    throw std::invalid_argument("head_dim is no multiple of 32");
  if (places.empty()) throw std::invalid_argument("no places to share bits among");
  for (const std::vector<ProfilePoint>& place : places) {
    if (place.empty()) throw std::invalid_argument("a place without candidates");
    for (const ProfilePoint& point : place) {
      if (std::isnan(point.error)) throw std::invalid_argument("the error of a width profile is NaN");
    }
  }
}

}  // namespace

void to_json(Json& json, const Widths& widths) {
  json = static_cast<const std::array<std::uint8_t, kBands>&>(widths);
  if (widths.refined) json.push_back("refined");
}

std::string widths_text(std::span<const std::uint8_t> widths, bool refined) {
  std::string text;
  for (const std::uint8_t width : widths) {
    if (!text.empty()) text += '-';
    text += std::to_string(width);
  }
  return refined ? text + " refined" : text;
}

std::string bits_text(double bits) { return formatted("%.4g", bits); }

const std::vector<Widths>& falling_profiles() {
  static const std::vector<Widths> profiles = all_falling();
  return profiles;
}

const std::vector<Widths>& latent_profiles() {
  static const std::vector<Widths> profiles = with_refined(falling_profiles());
  return profiles;
}

double profile_bits(const Widths& widths, int head_dim) { return band_code(head_dim, widths).bits_per_element(); }

void require_budget(double bits, int head_dim) {
  constexpr double kLeast = 0.25;
  const double most = profile_bits({4, 4, 4, 4}, head_dim);
  if (bits >= kLeast && bits <= most + 1e-9) return;
  throw UsageError("--bits " + bits_text(bits) + " is not possible with block widths and head size " +
                   std::to_string(head_dim) + "; choose from " + bits_text(kLeast) + " to " + bits_text(most) +
                   " (four bits everywhere)");
}

std::size_t row_bits(const Widths& widths, int head_dim) {
  std::size_t bits = 0;
  for (const std::uint8_t width : widths) {
    if (width > 0) bits += width * static_cast<std::size_t>(head_dim / kBands) + kUnit;
  }
  return bits;
}

std::size_t rows_budget(std::size_t places, int head_dim, double bits) {
  return static_cast<std::size_t>(bits * static_cast<double>(places) * head_dim + 1e-6);
}

std::vector<std::size_t> choose_within(const std::vector<std::vector<BitsAndError>>& candidates, std::size_t most) {
  const std::size_t size = most / kUnit + 1;
  std::vector<double> best(size, 0.0), next(size);  // least error of the units so far within u multiples of 8 bits
  std::vector<std::vector<std::uint32_t>> chosen;   // [unit][u]: the chosen candidate
  for (const std::vector<BitsAndError>& unit : candidates) {
    std::fill(next.begin(), next.end(), kInfinite);
    std::vector<std::uint32_t>& row = chosen.emplace_back(size, 0);
    for (std::size_t c = 0; c < unit.size(); ++c) {
      const std::size_t cost = unit[c].bits / kUnit;
      for (std::size_t u = cost; u < size; ++u) {
        const double total = best[u - cost] + unit[c].error;
        if (total < next[u]) next[u] = total, row[u] = static_cast<std::uint32_t>(c);
      }
    }
    best.swap(next);
  }
  // best[] does not increase, so the first minimum has the fewest bits.
  auto u = static_cast<std::size_t>(std::min_element(best.begin(), best.end()) - best.begin());
  if (best[u] == kInfinite) return {};
  std::vector<std::size_t> choice(candidates.size());
  for (std::size_t i = candidates.size(); i-- > 0;) {
    choice[i] = chosen[i][u];
    u -= candidates[i][choice[i]].bits / kUnit;
  }
  return choice;
}

std::vector<std::size_t> allocate_profiles(const std::vector<std::vector<ProfilePoint>>& places, int head_dim,
                                           double bits) {
  require_places(places, head_dim);
  require_budget(bits, head_dim);
  std::vector<std::vector<BitsAndError>> candidates;
  for (const std::vector<ProfilePoint>& place : places) {
    std::vector<BitsAndError>& list = candidates.emplace_back();
    for (const ProfilePoint& point : place) list.push_back({row_bits(point.widths, head_dim), point.error});
  }
  std::vector<std::size_t> choice = choose_within(candidates, rows_budget(places.size(), head_dim, bits));
  if (choice.empty()) {
    throw UsageError("no choice of the width profiles on offer fits into --bits " + bits_text(bits) + "; raise it");
  }
  return choice;
}

}  // namespace oscar
