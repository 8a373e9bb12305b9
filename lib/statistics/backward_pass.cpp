#include "statistics/backward_pass.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "statistics/attention_outputs.h"
#include "statistics/kl_labels.h"

namespace oscar {
namespace {

constexpr std::int64_t kLogits = std::int64_t{1} << 20, kGpuLogits = std::int64_t{1} << 27;  // held at once

bool finite(const at::Tensor& a, const at::Tensor& b) { return (a.isfinite().all() & b.isfinite().all()).item<bool>(); }

class KlTask : public BackwardTask {
 public:
  KlTask(const ModelConfig& config, const PromptSet& prompts, const CollectOptions& options)
      : prompts_(prompts), options_(options), metric_(config.kv_heads, config.head_dim, options.device) {}

  LabelRange labels(const Piece& piece) const override {
    return {options_.far.sink + options_.far.recent, piece.length};
  }
  at::Tensor label_gradient(const Decoder& decoder, const at::Tensor& states, const Piece& piece,
                            std::int64_t first) const override {
    std::vector<double> draws;
    for (std::int64_t row = first; row < first + states.size(0); ++row) {
      draws.push_back(label_draw(options_.seed, prompts_.sha256, piece.sequence, row));
    }
    return drawn_label_gradient(decoder, states, at::tensor(at::ArrayRef<double>(draws), at::kDouble));
  }
  void begin_layer(const LayerMoments* partial) override { metric_.begin_layer(partial); }
  bool add(const LayerGradient& gradient, const Piece& piece, const Unrotation::Rows& rows) override {
    if (!finite(gradient.far_k, gradient.far_v)) return false;
    const LabelRange range = labels(piece);
    metric_.add(gradient, rows, range.last - range.first);
    return true;
  }
  void store(LayerMoments& out) const override { metric_.store(out); }
  void finish(LayerMoments& out) const override { metric_.finish(out); }

 private:
  const PromptSet& prompts_;
  const CollectOptions& options_;
  KlAccumulator metric_;
};

class RowGradientTask : public BackwardTask {
 public:
  RowGradientTask(const ModelConfig& config, const PromptSet& prompts, const CollectOptions& options,
                  const std::vector<SampledToken>& sample)
      : prompts_(prompts), rows_(config.kv_heads, config.head_dim, common_rope(config), sample, options.device) {}

  // The last token of a sequence has no next one.
  LabelRange labels(const Piece& piece) const override { return {0, piece.length - 1}; }
  at::Tensor label_gradient(const Decoder& decoder, const at::Tensor& states, const Piece& piece,
                            std::int64_t first) const override {
    const auto* next = prompts_.prompts[piece.prompt].ids.data() + piece.offset + first + 1;
    const std::vector<std::int64_t> ids(next, next + states.size(0));
    const at::Tensor labels = at::tensor(at::ArrayRef<std::int64_t>(ids), at::kLong);
    return oscar::label_gradient(decoder, states, labels.to(states.device()));
  }
  void begin_layer(const LayerMoments* partial) override { rows_.begin_layer(partial); }
  bool add(const LayerGradient& gradient, const Piece& piece, const Unrotation::Rows& rows) override {
    if (!finite(gradient.k, gradient.v)) return false;
    rows_.add(gradient, piece, rows);
    return true;
  }
  void store(LayerMoments& out) const override { rows_.store(out); }
  void finish(LayerMoments& out) const override { rows_.store(out); }

 private:
  const PromptSet& prompts_;
  RowGradients rows_;
};

}  // namespace

std::int64_t kl_labels(const TokenPlan& plan, const FarPairs& pairs) {
  std::int64_t labels = 0;
  for (const Piece& piece : plan.pieces) labels += std::max<std::int64_t>(piece.length - pairs.sink - pairs.recent, 0);
  return pairs.enabled ? labels : 0;
}

std::unique_ptr<BackwardTask> make_kl_task(const ModelConfig& config, const PromptSet& prompts,
                                           const CollectOptions& options) {
  return std::make_unique<KlTask>(config, prompts, options);
}

std::unique_ptr<BackwardTask> make_row_gradient_task(const ModelConfig& config, const PromptSet& prompts,
                                                     const CollectOptions& options,
                                                     const std::vector<SampledToken>& sample) {
  return std::make_unique<RowGradientTask>(config, prompts, options, sample);
}

BackwardPass::BackwardPass(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                           const CollectOptions& options, WorkDirectory& work, BackwardTask& task, std::int64_t base,
                           Hooks hooks)
    : config_(checkpoint.config()),
      prompts_(prompts),
      plan_(plan),
      options_(options),
      work_(work),
      task_(task),
      base_(base),
      hooks_(std::move(hooks)),
      decoder_(checkpoint, DecoderOptions{options.dtype, options.device, /*stream_layers=*/true}),
      unrotation_(common_rope(config_), options.device) {}

Spool BackwardPass::hidden(std::int64_t layer) const {
  return Spool(work_.file("hidden-" + std::to_string(layer) + ".bin"), plan_.tokens, {config_.hidden}, options_.dtype,
               /*keep=*/true);
}

// What the stage at `point` writes: dL/d of its input.
Spool BackwardPass::gradients(std::int64_t point, bool keep) const {
  const std::int64_t turn = (point - base_) % 2;
  return Spool(work_.file("gradient-" + std::to_string(turn) + ".bin"), plan_.tokens, {config_.hidden}, at::kFloat,
               keep);
}

void BackwardPass::run(std::int64_t point, std::int64_t step, const LayerMoments* sums) {
  for (; point < base_ + backward_points(config_.layers); ++point, step = 0, sums = nullptr) {
    if (point == base_) {
      start(step);
    } else {
      run_layer(point, step, step > 0 ? sums : nullptr);
    }
  }
}

void BackwardPass::checkpoint(std::int64_t point, std::size_t piece, Spool& written, const BackwardTask* sums) {
  if (!hooks_.due()) return;
  written.sync();
  LayerMoments partial;
  if (sums != nullptr) sums->store(partial);
  hooks_.save(point, static_cast<std::int64_t>(piece) + 1, partial);
}

void BackwardPass::start(std::int64_t first) {
  const Spool in = hidden(config_.layers);
  Spool out = gradients(base_, first > 0);
  const std::int64_t rows =
      std::max<std::int64_t>((options_.device.is_cuda() ? kGpuLogits : kLogits) / config_.vocabulary, 1);
  for (auto i = static_cast<std::size_t>(first); i < plan_.pieces.size(); ++i) {
    const Piece& piece = plan_.pieces[i];
    const LabelRange range = task_.labels(piece);
    if (range.empty()) continue;
    at::Tensor gradient = at::zeros({piece.length, config_.hidden}, at::kFloat);
    for (std::int64_t t = range.first; t < range.last; t += rows) {
      const std::int64_t count = std::min(rows, range.last - t);
      const at::Tensor states = in.read(piece.position + t, count).to(options_.device);
      gradient.narrow(0, t, count).copy_(task_.label_gradient(decoder_, states, piece, t));
    }
    if (!gradient.isfinite().all().item<bool>()) {
      throw NumericalError("the gradient of labels at the output of the last layer holds NaN or infinity in " +
                           prompts_.prompts[piece.prompt].source + "; check the checkpoint, or try --dtype float32");
    }
    out.write(piece.position, gradient);
    checkpoint(base_, i, out, nullptr);
    hooks_.tick(base_, piece.length);
  }
  out.sync();
  hooks_.save(base_ + 1, 0, {});
}

void BackwardPass::run_layer(std::int64_t point, std::int64_t first, const LayerMoments* sums) {
  const std::int64_t layer = backward_layer(config_.layers, base_, point);
  const Spool states = hidden(layer), in = gradients(point - 1, true);
  Spool out = gradients(point, first > 0);
  const bool holds_kv = config_.holds_kv(layer);  // else the gradient only passes through
  GradientRequest request{.hidden = layer > 0};
  const std::optional<Spool> outputs =
      AttentionOutputs::open(work_, layer, plan_.tokens, {config_.query_heads, config_.head_dim}, options_.dtype);
  if (holds_kv) task_.begin_layer(sums);
  for (auto i = static_cast<std::size_t>(first); i < plan_.pieces.size(); ++i) {
    const Piece& piece = plan_.pieces[i];
    if (task_.labels(piece).empty()) continue;
    if (outputs) request.output = outputs->read(piece.position, piece.length).to(options_.device);
    const LayerGradient gradient =
        layer_gradient(decoder_, layer, states.read(piece.position, piece.length).to(options_.device),
                       in.read(piece.position, piece.length).to(options_.device), options_.far, request);
    if (holds_kv && !task_.add(gradient, piece, unrotation_.rows_of({{0}, {piece.length}, {0}}))) {
      throw NumericalError("layer " + std::to_string(layer) +
                           ": the gradient of keys or values holds NaN or infinity in " +
                           prompts_.prompts[piece.prompt].source + "; check the checkpoint, or try --dtype float32");
    }
    if (gradient.hidden.defined()) out.write(piece.position, gradient.hidden);
    checkpoint(point, i, out, holds_kv ? &task_ : nullptr);
    hooks_.tick(point, piece.length);
  }
  out.sync();
  if (holds_kv) {
    LayerMoments moments = work_.load_layer(layer);
    task_.finish(moments);
    work_.save_layer(layer, moments);
  }
  hooks_.save(point + 1, 0, {});
}

}  // namespace oscar
