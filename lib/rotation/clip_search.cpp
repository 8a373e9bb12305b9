#include "rotation/clip_search.h"

#include <cmath>

namespace oscar {
namespace {

void add(std::vector<ErrorSum>& to, const std::vector<ErrorSum>& from) {
  if (to.empty()) to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

std::size_t smallest(const std::vector<double>& values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[best]) best = i;
  }
  return best;
}

std::size_t choose(const std::vector<double>& fit, const std::vector<double>& held_out) {
  if (fit.empty()) return 0;
  const std::size_t best = smallest(fit);
  return held_out[best] < held_out[0] ? best : 0;
}

}  // namespace

std::vector<float> clip_candidates(std::int64_t d) {
  std::vector<float> ratios = {0.0f};
  std::int64_t step = 1;
  for (std::int64_t clipped = 1; clipped <= d / 5; clipped += step) {
    const double index = static_cast<double>(d - 1 - clipped);
    ratios.push_back(static_cast<float>(std::round((index + 0.5) / static_cast<double>(d) * 1000.0) / 1000.0));
    if (clipped >= d / 16) step = std::max<std::int64_t>(1, d / 64);  // the far end needs no fine steps
  }
  return ratios;
}

ClipCurve& ClipCurve::operator+=(const ClipCurve& other) {
  add(fit, other.fit);
  add(held_out, other.held_out);
  return *this;
}

ScorerFactory scorer_factory(ClipObjective objective) {
  switch (objective) {
    case ClipObjective::kMetric:
      return metric_scorer;
    case ClipObjective::kGain:
      return gain_scorer;
    case ClipObjective::kAttention:
      break;
  }
  return attention_scorer;
}

std::size_t choose_clip(const ClipCurve& curve) {
  std::vector<double> fit, held_out;
  for (const ErrorSum& sum : curve.fit) fit.push_back(sum.relative());
  for (const ErrorSum& sum : curve.held_out) held_out.push_back(sum.relative());
  return choose(fit, held_out);
}

std::size_t choose_global_clip(const std::vector<ClipCurve>& layers) {
  std::vector<double> fit, held_out;
  for (const ClipCurve& curve : layers) {
    fit.resize(curve.fit.size());
    held_out.resize(curve.held_out.size());
    for (std::size_t i = 0; i < fit.size(); ++i) {
      fit[i] += curve.fit[i].relative();
      held_out[i] += curve.held_out[i].relative();
    }
  }
  return choose(fit, held_out);
}

}  // namespace oscar
