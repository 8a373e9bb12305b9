#include "rotation/allocators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "rotation/width_steps.h"

namespace oscar {
namespace {

constexpr double kAtOnce = std::numeric_limits<double>::infinity();  // a level above all others

Widths whole(std::uint8_t width) { return {width, width, width, width}; }

// Every list has as many numbers as the first, a multiple of `unit`, and none is negative.
void require_numbers(const Sensitivities& places, std::size_t unit) {
  if (places.empty()) throw std::invalid_argument("nothing to share bits among");
  for (const std::vector<double>& place : places) {
    if (place.empty() || place.size() % unit != 0 || place.size() != places.front().size()) {
      throw std::invalid_argument("sensitivities of another shape");
    }
    for (const double value : place) {
      if (!(value >= 0.0)) throw std::invalid_argument("a sensitivity is negative or NaN");
    }
  }
}

void require_shape(const Sensitivities& places, std::size_t unit) {
  require_numbers(places, unit);
  if (places.size() % 2 != 0) throw std::invalid_argument("keys without values");
}

// [places], keys before values.
Allocation as_allocation(const std::vector<Widths>& places, int head_dim) {
  Allocation out;
  for (std::size_t p = 0; p < places.size(); ++p) {
    (p % 2 == 0 ? out.key : out.value).push_back(places[p]);
    out.bits += profile_bits(places[p], head_dim) / static_cast<double>(places.size());
  }
  return out;
}

// Steps of the blocks of one place by reverse water-filling; levels are log2 of theta.
std::vector<WidthStep> water_steps(const std::vector<double>& variances, std::size_t place) {
  std::vector<WidthStep> steps;
  const auto channels = static_cast<std::ptrdiff_t>(variances.size() / kBands);
  for (int block = 0; block < kBands; ++block) {
    const auto first = variances.begin() + block * channels;
    const std::vector<double> own(first, first + channels);
    for (const RoundedStep& step : kRoundedSteps) {
      steps.push_back({place, block, step.width, water_level(own, step.bits)});
    }
  }
  return steps;
}

// Each whole width for all `sides` of a unit.
std::vector<std::vector<Widths>> one_width_menu(std::size_t sides) {
  std::vector<std::vector<Widths>> menu;
  for (const std::uint8_t width : kWholeWidths) menu.emplace_back(sides, whole(width));
  return menu;
}

// Least sum of errors within the budget. errors: [units][candidates]; menu: what each candidate gives the places of its
// unit, a side or a whole layer.
Allocation of_least_sum(const Sensitivities& errors, const std::vector<std::vector<Widths>>& menu, int head_dim,
                        double bits) {
  require_numbers(errors, menu.size());
  require_budget(bits, head_dim);
  std::vector<std::vector<BitsAndError>> candidates;
  for (const std::vector<double>& unit : errors) {
    if (unit.size() != menu.size()) throw std::invalid_argument("sensitivities of another shape");
    std::vector<BitsAndError>& list = candidates.emplace_back();
    for (std::size_t c = 0; c < menu.size(); ++c) {
      std::size_t cost = 0;
      for (const Widths& widths : menu[c]) cost += row_bits(widths, head_dim);
      list.push_back({cost, unit[c]});
    }
  }
  const std::size_t places = errors.size() * menu.front().size();
  if (places % 2 != 0) throw std::invalid_argument("keys without values");
  std::vector<Widths> widths;  // always some: width 0 costs nothing
  for (const std::size_t c : choose_within(candidates, rows_budget(places, head_dim, bits))) {
    const std::vector<Widths>& own = menu[c];
    widths.insert(widths.end(), own.begin(), own.end());
  }
  return as_allocation(widths, head_dim);
}

}  // namespace

Allocation water_fill_channels(const Sensitivities& variances, int head_dim, double bits) {
  require_shape(variances, kBands);
  std::vector<WidthStep> steps;
  for (std::size_t p = 0; p < variances.size(); ++p) {
    const std::vector<WidthStep> own = water_steps(variances[p], p);
    steps.insert(steps.end(), own.begin(), own.end());
  }
  return as_allocation(climb(std::move(steps), variances.size(), head_dim, bits), head_dim);
}

Allocation water_fill_places(const Sensitivities& variances, int head_dim, double bits) {
  require_shape(variances, kBands);
  std::vector<Widths> widths;
  for (const std::vector<double>& place : variances) {
    widths.push_back(climb(water_steps(place, 0), 1, head_dim, bits).front());
  }
  return as_allocation(widths, head_dim);
}

double rate_base() {
  constexpr double kWidths[] = {0.0, 1.0, 2.0, 4.0};
  double mean_width = 0.0, mean_log = 0.0, slope = 0.0, spread = 0.0;
  for (const double w : kWidths) {
    mean_width += w / 4.0;
    mean_log += std::log(band_distortion(static_cast<int>(w))) / 4.0;
  }
  for (const double w : kWidths) {
    slope += (w - mean_width) * (std::log(band_distortion(static_cast<int>(w))) - mean_log);
    spread += (w - mean_width) * (w - mean_width);
  }
  return std::exp(-slope / spread);
}

Allocation rate_distortion_widths(const Sensitivities& weights, int head_dim, double bits) {
  require_shape(weights, 1);
  const double log_base = std::log(rate_base());
  std::vector<WidthStep> steps;
  for (std::size_t p = 0; p < weights.size(); ++p) {
    // b passes a threshold where the mean is the threshold less this; the mean of ln w is the same for all places.
    const double ahead = std::log(weights[p].front()) / log_base;
    for (const RoundedStep& step : kRoundedSteps) steps.push_back({p, kWholeSide, step.width, ahead - step.bits});
  }
  return as_allocation(climb(std::move(steps), weights.size(), head_dim, bits), head_dim);
}

Allocation greedy_norm_widths(const Sensitivities& squared_norms, int head_dim, double bits) {
  require_shape(squared_norms, 1);
  std::vector<WidthStep> steps;
  for (std::size_t p = 0; p < squared_norms.size(); ++p) {
    int from = 0;
    for (const int to : {1, 2, 4}) {
      const double gain = (std::exp2(-2.0 * from) - std::exp2(-2.0 * to)) / (to - from);
      steps.push_back({p, kWholeSide, static_cast<std::uint8_t>(to), std::log(squared_norms[p].front() * gain)});
      from = to;
    }
  }
  return as_allocation(climb(std::move(steps), squared_norms.size(), head_dim, bits), head_dim);
}

Allocation tied_widths(const Sensitivities& kl, int head_dim, double bits) {
  return of_least_sum(kl, one_width_menu(2), head_dim, bits);
}

Allocation paired_widths(const Sensitivities& errors, int head_dim, double bits) {
  std::vector<std::vector<Widths>> menu;
  for (const std::uint8_t key : kWholeWidths) {
    for (const std::uint8_t value : kWholeWidths) menu.push_back({whole(key), whole(value)});
  }
  return of_least_sum(errors, menu, head_dim, bits);
}

Allocation scored_widths(const Sensitivities& scores, int head_dim, double bits) {
  return of_least_sum(scores, one_width_menu(1), head_dim, bits);
}

Allocation ranked_widths(const Sensitivities& gradient_norms, int head_dim, double bits) {
  require_shape(gradient_norms, 1);
  std::size_t lower = 0;
  while (lower + 1 < kWholeWidths.size() && profile_bits(whole(kWholeWidths[lower + 1]), head_dim) <= bits + 1e-9) {
    ++lower;
  }
  std::vector<WidthStep> steps;
  for (std::size_t p = 0; p < gradient_norms.size(); ++p) {
    if (lower > 0) steps.push_back({p, kWholeSide, kWholeWidths[lower], kAtOnce});
    if (lower + 1 == kWholeWidths.size()) continue;
    std::size_t rank = 0;  // of the layer among those of its side, equal ones in their order
    for (std::size_t other = p % 2; other < gradient_norms.size(); other += 2) {
      const double norm = gradient_norms[other].front(), own = gradient_norms[p].front();
      if (norm > own || (norm == own && other < p)) ++rank;
    }
    steps.push_back({p, kWholeSide, kWholeWidths[lower + 1], -static_cast<double>(rank)});
  }
  return as_allocation(climb(std::move(steps), gradient_norms.size(), head_dim, bits), head_dim);
}

const std::vector<AllocatorRow>& allocators() {
  static const std::vector<AllocatorRow> rows = {
      {"aatc", "AATC (2608.14191)", AllocatorInput::kStatistics, AllocatorMeasure::kOutputVariances,
       "one reverse water-filling over the channels of all layers, keys and values", water_fill_channels},
      {"spectra", "SPECTRA (2608.07915)", AllocatorInput::kStatistics, AllocatorMeasure::kRowVariances,
       "reverse water-filling within each layer and side, blind to queries", water_fill_places},
      {"ratequant", "RateQuant (2605.06675)", AllocatorInput::kStatistics, AllocatorMeasure::kSideLosses,
       "one width for a layer and side, by its sensitivity and D(b) = a beta^-b", rate_distortion_widths},
      {"spectral", "spectral-kv (2502.15075)", AllocatorInput::kWeights, AllocatorMeasure::kSquaredWeightNorms,
       "one width for a layer and side, greedy by the norms of W_K and W_V", greedy_norm_widths},
      {"modelopt", "Model-Optimizer (auto_quantize_kv_cache)", AllocatorInput::kText, AllocatorMeasure::kTiedLayerKl,
       "one width for a layer, by the KL of that layer alone", tied_widths},
      {"kvtuner", "KVTuner (2502.04420)", AllocatorInput::kText, AllocatorMeasure::kPairOutputErrors,
       "a pair of widths for a layer, by the error of its attention output", paired_widths},
      {"pmkvq", "PM-KVQ (2505.18610)", AllocatorInput::kText, AllocatorMeasure::kFirstOrderScores,
       "one width for a layer and side, by gradient times error", scored_widths},
      {"kvmix", "KVmix (2506.08018)", AllocatorInput::kText, AllocatorMeasure::kWeightGradientNorms,
       "two widths, layers ranked by the gradients of W_K and W_V", ranked_widths},
  };
  return rows;
}

const AllocatorRow* find_allocator(const std::string& id) {
  const std::vector<AllocatorRow>& rows = allocators();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const AllocatorRow& row) { return row.id == id; });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace oscar
