// Checks that the results of a layer's steps are finite, and sums the energy of the hidden states that leave the layer.
// A GPU gets the next step before the previous one is checked, so it need not wait for the CPU in between.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "base/timeline.h"
#include "collect/late_number.h"
#include "collect/moment_observer.h"
#include "collect/stopwatch.h"
#include "collect/token_plan.h"

namespace oscar {

class StepChecks {
 public:
  // timeline: gets the phase kMoments; may be null.
  StepChecks(const PromptSet& prompts, const TokenPlan& plan, at::Device device, Timeline* timeline)
      : prompts_(prompts), plan_(plan), device_(device), timeline_(timeline), watch_(device) {}

  // What a step leaves to check: the observed attention, |x| of the hidden states, and the sum of their squares.
  struct Shown {
    const Step* step;
    std::string where;
    at::Tensor norms;
    LateNumber energy;
    std::optional<MomentObserver::Seen> seen;
  };
  Shown shown_by(const at::Tensor& hidden, const Step& step, std::string where);
  // Sum of |x|^2 over the rows of a step; NumericalError if it is not finite.
  double energy_of(const Shown& shown) const;

  void begin_layer(double energy);                          // energy: of steps that were done before
  void check_later(Shown shown, MomentObserver& observer);  // call after the latest step; checks the step before it
  void check_behind(const MomentObserver& observer);        // checks all steps so far; NumericalError
  double energy() const { return energy_; }                 // of the checked steps of the layer
  double seconds() { return watch_.seconds(); }             // spent on norms so far

 private:
  const PromptSet& prompts_;
  const TokenPlan& plan_;
  at::Device device_;
  Timeline* timeline_;
  Stopwatch watch_;
  double energy_ = 0.0;
  std::optional<Shown> behind_;  // the step not yet checked; nullopt: all are checked
};

}  // namespace oscar
