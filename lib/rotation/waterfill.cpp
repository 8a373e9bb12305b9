#include "rotation/waterfill.h"

#include <algorithm>
#include <cstdio>

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

struct Place {
  std::size_t layer, block;
  bool key;
};

struct Step {
  double rate = -1.0;  // gain per bit
  std::int64_t cost = 0;
  std::uint8_t width = 0;
};

// The best step up from `width` that costs at most `left` bits.
Step best_step(double energy, std::uint8_t width, int head_dim, std::int64_t left) {
  Step best;
  for (const std::uint8_t next : kWidths) {
    if (next <= width) continue;
    const std::int64_t cost = block_bits(next, head_dim) - block_bits(width, head_dim);
    if (cost > left) continue;
    const double rate = energy * (block_distortion(width) - block_distortion(next)) / static_cast<double>(cost);
    if (rate > best.rate) best = {rate, cost, next};
  }
  return best;
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

Allocation waterfill(const std::vector<SideEnergy>& key, const std::vector<SideEnergy>& value, int head_dim,
                     double bits) {
  const auto layers = static_cast<std::int64_t>(key.size());
  const auto row_bits = [&](int width) { return kBlocks * block_bits(width, head_dim); };
  const double elements = static_cast<double>(2 * layers * head_dim);
  const int start = bits < 2.0 ? 0 : 1;  // width of key blocks
  constexpr double kLeast = 0.25;
  const double most = static_cast<double>(2 * layers * row_bits(4)) / elements;
  if (!(bits >= kLeast) || !(bits <= most + 1e-9)) {
    throw UsageError("--bits " + number(bits) + " is not possible with block widths and head size " +
                     std::to_string(head_dim) + "; choose from " + number(kLeast) + " to " + number(most) +
                     " (four bits everywhere)");
  }
  Allocation out;
  const auto first = static_cast<std::uint8_t>(start);
  out.key.assign(key.size(), {first, first, first, first});
  out.value.assign(value.size(), {0, 0, 0, 0});
  auto left = static_cast<std::int64_t>(bits * elements + 1e-6) - layers * row_bits(start);
  std::vector<Place> places;
  for (std::size_t layer = 0; layer < key.size(); ++layer) {
    for (const bool is_key : {true, false}) {
      for (std::size_t b = 0; b < kBlocks; ++b) places.push_back({layer, b, is_key});
    }
  }
  const auto width_of = [&](const Place& p) -> std::uint8_t& {
    return (p.key ? out.key : out.value)[p.layer][p.block];
  };
  for (;;) {
    Step best;
    const Place* where = nullptr;
    for (const Place& p : places) {  // ties: the first place
      const double energy = (p.key ? key : value)[p.layer].block[p.block];
      const Step step = best_step(energy, width_of(p), head_dim, left);
      if (step.rate > best.rate) best = step, where = &p;
    }
    if (where == nullptr) break;
    width_of(*where) = best.width;
    left -= best.cost;
  }
  out.bits = bits - static_cast<double>(left) / elements;
  return out;
}

}  // namespace oscar
