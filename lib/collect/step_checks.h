// Checks of what the model computes while statistics are collected.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "checkpoint/checkpoint.h"
#include "collect/device_values.h"
#include "collect/moment_observer.h"
#include "collect/token_plan.h"

namespace oscar {

// Checks that a model predicts the calibration text as well as a trained model does. This is the last test that the
// checkpoint was read correctly, whatever its files look like.
struct LossCheck {
  std::int64_t tokens = 0;  // number of predicted tokens; 0: too few, or a head that cannot be read in parts
  double loss = 0;          // mean of -log p(next token), nats
  double shuffled = 0;      // mean loss of the same predictions when the next tokens are shuffled, nats
};

constexpr std::int64_t kLossTokens = 256;  // at most
constexpr std::int64_t kLeastLossTokens = 32;

// normed: [T, hidden] after the final norm, for consecutive tokens of one sequence; ids [T]. The head is read from the
// files one part at a time, in FP32, so it needs little memory.
LossCheck check_loss(const Checkpoint& checkpoint, const at::Tensor& normed, const std::vector<std::int32_t>& ids);

// A sentence if the loss is near chance: above 85% of log(vocabulary), or less than 1 nat below the loss of the
// shuffled tokens. Empty otherwise, or if the loss was not measured.
std::string loss_fault(const LossCheck& check, std::int64_t vocabulary);

// Checks that the results of a layer's steps are finite, and sums the energy of the hidden states that leave the layer.
// A GPU gets the next step before the previous one is checked, so it need not wait for the CPU in between.
class StepChecks {
 public:
  // timeline: gets the phase kMoments; may be null.
  StepChecks(const PromptSet& prompts, const TokenPlan& plan, at::Device device, Timeline* timeline)
      : prompts_(prompts), plan_(plan), device_(device), timeline_(timeline) {}

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

  void begin_layer();
  void check_later(Shown shown, MomentObserver& observer);  // call after the latest step; checks the step before it
  void check_behind(const MomentObserver& observer);        // checks all steps so far; NumericalError
  double energy() const { return energy_; }                 // of the checked steps of the layer

 private:
  const PromptSet& prompts_;
  const TokenPlan& plan_;
  at::Device device_;
  Timeline* timeline_;
  double energy_ = 0.0;
  std::optional<Shown> behind_;  // the step not yet checked; nullopt: all are checked
};

}  // namespace oscar
