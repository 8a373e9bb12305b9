#include "statistics/kl_pass.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "statistics/kl_labels.h"

namespace oscar {
namespace {

constexpr std::int64_t kLogits = std::int64_t{1} << 22, kGpuLogits = std::int64_t{1} << 27;  // held at once

}  // namespace

std::int64_t kl_labels(const TokenPlan& plan, const FarPairs& pairs) {
  std::int64_t labels = 0;
  for (const Piece& piece : plan.pieces) labels += std::max<std::int64_t>(piece.length - pairs.sink - pairs.recent, 0);
  return pairs.enabled ? labels : 0;
}

KlPass::KlPass(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
               const CollectOptions& options, WorkDirectory& work, Hooks hooks)
    : config_(checkpoint.config()),
      prompts_(prompts),
      plan_(plan),
      options_(options),
      work_(work),
      hooks_(std::move(hooks)),
      decoder_(checkpoint, DecoderOptions{options.dtype, options.device, options.stream_layers}),
      unrotation_(rope_frequencies(config_.rope, config_.head_dim, config_.max_position), options.device) {}

Spool KlPass::hidden(std::int64_t layer) const {
  return Spool(work_.file("hidden-" + std::to_string(layer) + ".bin"), plan_.tokens, {config_.hidden}, options_.dtype,
               /*keep=*/true);
}

// What the stage at `point` writes: dL/d of its input.
Spool KlPass::gradients(std::int64_t point, bool keep) const {
  const std::int64_t turn = (point - config_.layers) % 2;
  return Spool(work_.file("gradient-" + std::to_string(turn) + ".bin"), plan_.tokens, {config_.hidden}, at::kFloat,
               keep);
}

void KlPass::run(std::int64_t point, std::int64_t step, const LayerMoments* sums) {
  for (; point < kl_last_point(config_.layers); ++point, step = 0, sums = nullptr) {
    if (point == config_.layers) {
      draw(step);
    } else {
      run_layer(point, step, step > 0 ? sums : nullptr);
    }
  }
}

void KlPass::checkpoint(std::int64_t point, std::size_t piece, Spool& written, const KlAccumulator* sums) {
  if (!hooks_.due()) return;
  written.sync();
  LayerMoments partial;
  if (sums != nullptr) sums->store(partial);
  hooks_.save(point, static_cast<std::int64_t>(piece) + 1, partial);
}

void KlPass::draw(std::int64_t first) {
  const Spool in = hidden(config_.layers);
  Spool out = gradients(config_.layers, first > 0);
  const std::int64_t rows =
      std::max<std::int64_t>((options_.device.is_cuda() ? kGpuLogits : kLogits) / config_.vocabulary, 1);
  for (auto i = static_cast<std::size_t>(first); i < plan_.pieces.size(); ++i) {
    const Piece& piece = plan_.pieces[i];
    if (piece.length <= near()) continue;
    at::Tensor gradient = at::zeros({piece.length, config_.hidden}, at::kFloat);
    for (std::int64_t t = near(); t < piece.length; t += rows) {
      const std::int64_t count = std::min(rows, piece.length - t);
      std::vector<double> draws;
      for (std::int64_t row = t; row < t + count; ++row) {
        draws.push_back(label_draw(options_.seed, prompts_.sha256, piece.sequence, row));
      }
      const at::Tensor states = in.read(piece.position + t, count).to(options_.device);
      gradient.narrow(0, t, count)
          .copy_(drawn_label_gradient(decoder_, states, at::tensor(at::ArrayRef<double>(draws), at::kDouble)));
    }
    if (!gradient.isfinite().all().item<bool>()) {
      throw NumericalError("the gradient of labels at the output of the last layer holds NaN or infinity in " +
                           prompts_.prompts[piece.prompt].source + "; check the checkpoint, or try --dtype float32");
    }
    out.write(piece.position, gradient);
    checkpoint(config_.layers, i, out, nullptr);
    hooks_.tick(config_.layers, piece.length);
  }
  out.sync();
  hooks_.save(config_.layers + 1, 0, {});
}

void KlPass::run_layer(std::int64_t point, std::int64_t first, const LayerMoments* sums) {
  const std::int64_t layer = 2 * config_.layers - point;
  const Spool states = hidden(layer), in = gradients(point - 1, true);
  Spool out = gradients(point, first > 0);
  KlAccumulator metric(config_.kv_heads, config_.head_dim, options_.device);
  const bool holds_kv = config_.holds_kv(layer);  // else the gradient only passes through
  if (holds_kv) metric.begin_layer(sums);
  for (auto i = static_cast<std::size_t>(first); i < plan_.pieces.size(); ++i) {
    const Piece& piece = plan_.pieces[i];
    if (piece.length <= near()) continue;
    const LayerGradient gradient =
        layer_gradient(decoder_, layer, states.read(piece.position, piece.length).to(options_.device),
                       in.read(piece.position, piece.length).to(options_.device), options_.far);
    if (holds_kv && !(gradient.far_k.isfinite().all() & gradient.far_v.isfinite().all()).item<bool>()) {
      throw NumericalError("layer " + std::to_string(layer) +
                           ": the gradient of keys or values holds NaN or infinity in " +
                           prompts_.prompts[piece.prompt].source + "; check the checkpoint, or try --dtype float32");
    }
    if (holds_kv) metric.add(gradient, unrotation_.rows_of({{0}, {piece.length}, {0}}), piece.length - near());
    out.write(piece.position, gradient.hidden);
    checkpoint(point, i, out, holds_kv ? &metric : nullptr);
    hooks_.tick(point, piece.length);
  }
  out.sync();
  if (holds_kv) {
    LayerMoments moments = work_.load_layer(layer);
    metric.finish(moments);
    work_.save_layer(layer, moments);
  }
  hooks_.save(point + 1, 0, {});
}

}  // namespace oscar
