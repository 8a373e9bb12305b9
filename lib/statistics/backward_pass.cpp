#include "statistics/backward_pass.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "statistics/attention_outputs.h"
#include "statistics/moment_observer.h"

namespace oscar {
namespace {

constexpr std::int64_t kLogits = std::int64_t{1} << 20, kGpuLogits = std::int64_t{1} << 27;  // held at once

}  // namespace

std::int64_t starts_of(const BackwardTask& task, const TokenPlan& plan, const Step& step) {
  std::int64_t starts = 0;
  for (std::size_t i = step.first; i < step.first + step.count; ++i) {
    const TokenRange range = task.starts(plan.pieces[i]);
    if (!range.empty()) starts += range.last - range.first;
  }
  return starts;
}

BackwardPass::BackwardPass(const Run& run, BackwardTask& task, std::string name, std::int64_t base, bool last,
                           Hooks hooks)
    : run_(run),
      config_(run.checkpoint.config()),
      task_(task),
      name_(std::move(name)),
      base_(base),
      last_(last),
      hooks_(std::move(hooks)),
      decoder_(run.checkpoint, DecoderOptions{.dtype = run.options.dtype,
                                              .device = run.options.device,
                                              .stream_layers = true,
                                              .prefetch = true,
                                              .descending = true}),
      unrotation_(common_rope(config_), run.options.device) {}

// Of the stages before `stage`, and of its own first steps.
void BackwardPass::open_gradients(std::int64_t stage, std::int64_t step) {
  const HiddenStates::Shape shape{.rows = run_.plan.tokens,
                                  .hidden = config_.hidden,
                                  .dtype = at::kFloat,
                                  .device = run_.options.device,
                                  .held = run_.states.held(),
                                  .keep_all = false,
                                  .name = name_};
  if (stage == 0 && step == 0) {
    gradients_.emplace(run_.work, shape);
    return;
  }
  std::int64_t left = 0;
  if (step > 0) {
    const Step& done = run_.plan.steps[static_cast<std::size_t>(step - 1)];
    left = done.position + done.tokens;
  }
  gradients_.emplace(run_.work, shape, stage - 1, left);
}

void BackwardPass::run(std::int64_t point, std::int64_t step, const LayerMoments* sums) {
  const std::int64_t stages = backward_points(config_.layers);
  open_gradients(point - base_, step);
  for (std::int64_t stage = point - base_; stage < stages; ++stage, step = 0, sums = nullptr) {
    gradients_->begin(stage);
    if (stage == 0) {
      start(step);
    } else {
      run_layer(stage, step, step > 0 ? sums : nullptr);
    }
    end_stage(stage);
  }
}

void BackwardPass::start(std::int64_t first) {
  const bool gpu = run_.options.device.is_cuda();
  const std::int64_t most = std::max<std::int64_t>((gpu ? kGpuLogits : kLogits) / config_.vocabulary, 1);
  for (auto i = static_cast<std::size_t>(first); i < run_.plan.steps.size(); ++i) {
    const Step& step = run_.plan.steps[i];
    if (starts_of(task_, run_.plan, step) == 0) continue;
    const at::Tensor states = run_.states.read(config_.layers, step.position, step.tokens);
    at::Tensor gradient = at::zeros(states.sizes(), states.options().dtype(at::kFloat));
    for (std::size_t p = step.first; p < step.first + step.count; ++p) {
      const Piece& piece = run_.plan.pieces[p];
      const TokenRange range = task_.starts(piece);
      for (std::int64_t t = range.first; t < range.last; t += most) {
        const std::int64_t count = std::min(most, range.last - t), row = piece.position - step.position + t;
        gradient.narrow(0, row, count).copy_(task_.output_gradient(decoder_, states.narrow(0, row, count), piece, t));
      }
    }
    gradients_->write(0, step.position, gradient);
    after_step(0, i, gradient.isfinite().all(1), nullptr);
  }
}

void BackwardPass::run_layer(std::int64_t stage, std::int64_t first, const LayerMoments* sums) {
  const std::int64_t layer = backward_layer(config_.layers, 0, stage);
  const bool holds_kv = config_.holds_kv(layer);  // else the gradient only passes through
  GradientRequest request{.hidden = layer > 0};
  const std::optional<Spool> outputs = AttentionOutputs::open(
      run_.work, layer, run_.plan.tokens, {config_.query_heads, config_.head_dim}, run_.options.dtype);
  if (holds_kv) task_.begin_layer(sums);
  for (auto i = static_cast<std::size_t>(first); i < run_.plan.steps.size(); ++i) {
    const Step& step = run_.plan.steps[i];
    const std::int64_t starts = starts_of(task_, run_.plan, step);
    if (starts == 0) continue;
    if (outputs) request.output = outputs->read(step.position, step.tokens).to(run_.options.device);
    const SequenceBatch batch = batch_of(run_.plan, step);
    const LayerGradient gradient =
        layer_gradient(decoder_, layer, run_.states.read(layer, step.position, step.tokens), batch,
                       gradients_->read(stage - 1, step.position, step.tokens), run_.options.far, request);
    if (holds_kv) task_.add(gradient, step, starts, unrotation_.rows_of(batch));
    if (gradient.hidden.defined()) gradients_->write(stage, step.position, gradient.hidden);
    after_step(stage, i, holds_kv ? task_.finite_rows(gradient) : gradient.hidden.isfinite().all(1),
               holds_kv ? &task_ : nullptr);
  }
  if (!holds_kv) return;
  LayerMoments moments = run_.finished.take(layer);
  task_.finish(moments);
  run_.finished.put_back(layer, std::move(moments));
}

void BackwardPass::after_step(std::int64_t stage, std::size_t step, const at::Tensor& finite,
                              const BackwardTask* sums) {
  Shown shown{&run_.plan.steps[step], finite, LateNumber(finite.all().to(at::kDouble))};
  check_behind(stage);
  behind_ = std::move(shown);
  if (due()) {
    check_behind(stage);
    LayerMoments partial;
    if (sums != nullptr) sums->store(partial);
    save(stage, static_cast<std::int64_t>(step) + 1, partial);
  }
  hooks_.tick(base_ + stage, run_.plan.steps[step].tokens);
}

bool BackwardPass::due() const { return hooks_.due(gradients_->unsaved_bytes() + run_.states.unsaved_bytes()); }

void BackwardPass::check_behind(std::int64_t stage) {
  const std::optional<Shown> shown = std::exchange(behind_, std::nullopt);
  if (!shown || shown->all.value() != 0.0) return;
  const std::int64_t row = shown->rows.logical_not().nonzero()[0][0].item<std::int64_t>();
  const std::string what = stage == 0
                               ? "the gradient at the output of the last layer"
                               : "layer " + std::to_string(backward_layer(config_.layers, 0, stage)) + ": the gradient";
  throw NumericalError(what + " holds NaN or infinity for " + describe_row(run_.prompts, run_.plan, *shown->step, row) +
                       "; check the checkpoint, or try --dtype float32");
}

// Where hidden states are on disk, so is everything that the next stage goes on from.
void BackwardPass::end_stage(std::int64_t stage) {
  check_behind(stage);
  if (run_.states.held() && !due()) return;
  save(stage + 1, 0, {});
  if (stage + 1 == backward_points(config_.layers)) gradients_->remove_files();
}

void BackwardPass::save(std::int64_t stage, std::int64_t step, const LayerMoments& sums) {
  for (const std::int64_t each : {stage - 1, stage}) gradients_->save(each);
  // The states of layers that this pass is through with are not read again behind the last one.
  run_.states.save(last_ ? std::max<std::int64_t>(backward_layer(config_.layers, 0, stage), 0) : config_.layers);
  run_.finished.save();
  hooks_.save(base_ + stage, step, sums);
  gradients_->saved_state(stage - 1);
}

}  // namespace oscar
