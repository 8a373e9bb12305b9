#include "collect/step_checks.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "collect/collect_phases.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostBehind = 16384;  // largest step, in tokens, that is checked one step late

}  // namespace

StepChecks::Shown StepChecks::shown_by(const at::Tensor& hidden, const Step& step, std::string where) {
  const Timeline::Phase moments(timeline_, phase::kMoments);
  watch_.start();
  const at::Tensor norms = at::linalg_vector_norm(hidden, 2, at::IntArrayRef({-1}), false, at::kFloat);
  const at::Tensor total = norms.to(at::kDouble).square().sum();
  watch_.stop();
  return {&step, std::move(where), norms, LateNumber(total), std::nullopt};
}

double StepChecks::energy_of(const Shown& shown) const {
  const double energy = shown.energy.value();
  if (std::isfinite(energy)) return energy;
  const std::int64_t row = shown.norms.isfinite().logical_not().nonzero()[0][0].item<std::int64_t>();
  throw NumericalError(shown.where + ": the hidden state of " + describe_row(prompts_, plan_, *shown.step, row) +
                       " holds NaN or infinity; check the checkpoint, or try --dtype float32");
}

void StepChecks::begin_layer(double energy) {
  energy_ = energy;
  behind_.reset();
}

void StepChecks::check_later(Shown shown, MomentObserver& observer) {
  const Timeline::Phase moments(timeline_, phase::kMoments);
  shown.seen = observer.take_seen();
  const bool late = device_.is_cuda() && shown.step->tokens <= kMostBehind;
  check_behind(observer);
  behind_ = std::move(shown);
  if (!late) check_behind(observer);
}

void StepChecks::check_behind(const MomentObserver& observer) {
  if (!behind_) return;
  if (behind_->seen) observer.check(*behind_->seen);
  energy_ += energy_of(*behind_);
  behind_.reset();
}

}  // namespace oscar
