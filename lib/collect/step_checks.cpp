#include "collect/step_checks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/formatted.h"
#include "checkpoint/families/family.h"
#include "collect/collect_phases.h"
#include "model/weights.h"
#include "weights/tensor_view.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostBehind = 16384;  // largest step, in tokens, that is checked one step late

}  // namespace

StepChecks::Shown StepChecks::shown_by(const at::Tensor& hidden, const Step& step, std::string where) {
  const Timeline::Phase moments(timeline_, phase::kMoments);
  const at::Tensor norms = at::linalg_vector_norm(hidden, 2, at::IntArrayRef({-1}), false, at::kFloat);
  const at::Tensor total = norms.to(at::kDouble).square().sum();
  return {&step, std::move(where), norms, LateNumber(total), std::nullopt};
}

double StepChecks::energy_of(const Shown& shown) const {
  const double energy = shown.energy.value();
  if (std::isfinite(energy)) return energy;
  const std::int64_t row = shown.norms.isfinite().logical_not().nonzero()[0][0].item<std::int64_t>();
  throw NumericalError(shown.where + ": the hidden state of " + describe_row(prompts_, plan_, *shown.step, row) +
                       " holds NaN or infinity; check the checkpoint, or try --dtype float32");
}

void StepChecks::begin_layer() {
  energy_ = 0.0;
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

namespace {

constexpr std::int64_t kRows = 4096;  // rows of the head read at once

}  // namespace

LossCheck check_loss(const Checkpoint& checkpoint, const at::Tensor& normed, const std::vector<std::int32_t>& ids) {
  const ModelConfig& c = checkpoint.config();
  const std::int64_t count = std::min<std::int64_t>(std::ssize(ids) - 1, kLossTokens);
  const StoredWeight head = find_outer_weights(checkpoint, family_of(checkpoint)).head;
  if (count < kLeastLossTokens || !head.is_plain()) return {};
  const at::Tensor states = normed.narrow(0, 0, count).to(at::kCPU, at::kFloat);
  const auto width = static_cast<std::size_t>(c.hidden) * dtype_size(head.codes->dtype);
  // log of the sum of exp over all tokens, and two logits per position: of its own next token, and of the next token
  // half a text away.
  at::Tensor sum = at::full({count}, -std::numeric_limits<float>::infinity(), at::kFloat);
  at::Tensor own = at::zeros({count}), other = at::zeros({count});
  for (std::int64_t first = 0; first < c.vocabulary; first += kRows) {
    const std::int64_t rows = std::min(kRows, c.vocabulary - first);
    TensorView part = *head.codes;
    part.shape = {rows, c.hidden};
    part.data =
        head.codes->data.subspan(static_cast<std::size_t>(first) * width, static_cast<std::size_t>(rows) * width);
    at::Tensor logits = at::matmul(states, to_tensor(part, at::kFloat).t());
    if (c.logit_scale > 0.0) logits.mul_(c.logit_scale);
    if (c.final_soft_cap > 0.0) logits.div_(c.final_soft_cap).tanh_().mul_(c.final_soft_cap);
    sum = at::logaddexp(sum, at::logsumexp(logits, -1));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto take = [&](std::int64_t position, const at::Tensor& into) {
        const std::int64_t id = ids[static_cast<std::size_t>(position) + 1] - first;
        if (id >= 0 && id < rows) into[i] = logits[i][id];
      };
      take(i, own);
      take((i + count / 2) % count, other);
    }
  }
  return {count, (sum - own).mean().item<double>(), (sum - other).mean().item<double>()};
}

std::string loss_fault(const LossCheck& check, std::int64_t vocabulary) {
  if (check.tokens == 0) return "";
  const double uniform = std::log(static_cast<double>(vocabulary));
  if (check.loss <= 0.85 * uniform && check.shuffled - check.loss >= 1.0) return "";
  return "the model predicts the calibration text about as badly as chance: " + formatted("%.2f", check.loss) +
         " nats a token on the first " + std::to_string(check.tokens) + ", " + formatted("%.2f", check.shuffled) +
         " for the same tokens shuffled, " + formatted("%.2f", uniform) +
         " for a guess; it is not trained, the text is of no kind that it knows, or its files are read wrongly: "
         "compare with your own stack by --check-against of oscar-collect";
}

}  // namespace oscar
