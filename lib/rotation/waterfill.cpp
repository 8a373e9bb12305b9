#include "rotation/waterfill.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "base/errors.h"

namespace oscar {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// Bits of one row's block, its scale byte included.
std::int64_t block_bits(int width, int head_dim) { return width == 0 ? 0 : width * (head_dim / kBlocks) + 8; }

constexpr std::array<std::uint8_t, 4> kWidths = {0, 1, 2, 4};
constexpr std::int64_t kUnit = 8;  // bits; every block costs a multiple of it, since 32 divides the head size

struct Place {
  double energy = 0.0;
  std::uint8_t* width = nullptr;
};

// The widths of least total error that cost at most `units`: a knapsack with one choice for each place, exact. Of equal
// errors the cheapest. Returns the units used.
std::int64_t fill(const std::vector<Place>& places, int head_dim, std::int64_t units) {
  const auto size = static_cast<std::size_t>(units) + 1;
  std::vector<double> best(size, 0.0), next(size);  // least error of the places so far within u units
  std::vector<std::uint8_t> chosen(places.size() * size);
  for (std::size_t p = 0; p < places.size(); ++p) {
    std::fill(next.begin(), next.end(), std::numeric_limits<double>::infinity());
    std::uint8_t* row = chosen.data() + p * size;
    for (const std::uint8_t width : kWidths) {
      const auto cost = static_cast<std::size_t>(block_bits(width, head_dim) / kUnit);
      const double error = places[p].energy * block_distortion(width);
      for (std::size_t u = cost; u < size; ++u) {
        const double total = best[u - cost] + error;
        if (total < next[u]) next[u] = total, row[u] = width;
      }
    }
    best.swap(next);
  }
  // best[] does not increase: the first entry of least error is the cheapest.
  auto u = static_cast<std::size_t>(std::min_element(best.begin(), best.end()) - best.begin());
  const auto used = static_cast<std::int64_t>(u);
  for (std::size_t p = places.size(); p-- > 0;) {
    const std::uint8_t width = chosen[p * size + u];
    *places[p].width = width;
    u -= static_cast<std::size_t>(block_bits(width, head_dim) / kUnit);
  }
  return used;
}

}  // namespace

double block_distortion(int width) {
  switch (width) {
    case 0:
      return 1.0;
    case 1:
      return 0.3634;  // 1 - 2/pi
    case 2:
      return 0.1188;
    default:
      return 0.0115;
  }
}

double predicted_error(const SideEnergy& energy, const std::array<std::uint8_t, kBlocks>& widths) {
  double error = 0.0;
  for (std::size_t b = 0; b < kBlocks; ++b) error += energy.block[b] * block_distortion(widths[b]);
  return error;
}

void require_budget(double bits, int head_dim) {
  constexpr double kLeast = 0.25;
  const double most = static_cast<double>(kBlocks * block_bits(4, head_dim)) / static_cast<double>(head_dim);
  if (bits >= kLeast && bits <= most + 1e-9) return;
  throw UsageError("--bits " + number(bits) + " is not possible with block widths and head size " +
                   std::to_string(head_dim) + "; choose from " + number(kLeast) + " to " + number(most) +
                   " (four bits everywhere)");
}

Allocation waterfill(const std::vector<SideEnergy>& key, const std::vector<SideEnergy>& value, int head_dim,
                     double bits) {
  const auto layers = static_cast<std::int64_t>(key.size());
  const double elements = static_cast<double>(2 * layers * head_dim);
  require_budget(bits, head_dim);
  Allocation out;
  out.key.resize(key.size());
  out.value.resize(value.size());
  std::vector<Place> places;
  for (std::size_t layer = 0; layer < key.size(); ++layer) {
    for (std::size_t b = 0; b < kBlocks; ++b) places.push_back({key[layer].block[b], &out.key[layer][b]});
    for (std::size_t b = 0; b < kBlocks; ++b) places.push_back({value[layer].block[b], &out.value[layer][b]});
  }
  const auto units = static_cast<std::int64_t>(bits * elements + 1e-6) / kUnit;
  out.bits = static_cast<double>(fill(places, head_dim, units) * kUnit) / elements;
  return out;
}

}  // namespace oscar
