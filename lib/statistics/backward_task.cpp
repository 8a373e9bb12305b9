#include "statistics/backward_task.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "statistics/kl_moments.h"
#include "statistics/output_gradient.h"
#include "statistics/row_gradients.h"

namespace oscar {
namespace {

at::Tensor finite_rows_of(const at::Tensor& a, const at::Tensor& b) {  // [T, H, d] each
  const auto finite = [](const at::Tensor& x) { return x.flatten(1).isfinite().all(1); };
  return finite(a).logical_and_(finite(b));
}

class KlTask : public BackwardTask {
 public:
  KlTask(const ModelConfig& config, const PromptSet& prompts, const CollectOptions& options)
      : prompts_(prompts),
        options_(options),
        signs_(options.seed, config.vocabulary, options.device),
        metric_(config.kv_heads, config.head_dim, options.device) {}

  TokenRange starts(const Piece& piece) const override {
    return {options_.far.sink + options_.far.recent, piece.length};
  }
  at::Tensor output_gradient(const Decoder& decoder, const at::Tensor& states, const Piece& piece,
                             std::int64_t first) const override {
    std::vector<std::int64_t> places;
    for (std::int64_t row = first; row < first + states.size(0); ++row) {
      places.push_back(ProbeSigns::place(options_.seed, prompts_.sha256, piece.sequence, row));
    }
    return probe_gradient(decoder, states, signs_.at_places(at::tensor(at::ArrayRef<std::int64_t>(places), at::kLong)));
  }
  void begin_layer(const LayerMoments* partial) override { metric_.begin_layer(partial); }
  void add(const LayerGradient& gradient, const Step&, std::int64_t starts, const Unrotation::Rows& rows) override {
    metric_.add(gradient, rows, starts);
  }
  at::Tensor finite_rows(const LayerGradient& gradient) const override {
    return finite_rows_of(gradient.far_k, gradient.far_v);
  }
  void store(LayerMoments& out) const override { metric_.store(out); }
  void finish(LayerMoments& out) const override { metric_.finish(out); }

 private:
  const PromptSet& prompts_;
  const CollectOptions& options_;
  ProbeSigns signs_;
  KlAccumulator metric_;
};

class RowGradientTask : public BackwardTask {
 public:
  RowGradientTask(const ModelConfig& config, const PromptSet& prompts, const CollectOptions& options,
                  const std::vector<SampledToken>& sample)
      : prompts_(prompts), rows_(config.kv_heads, config.head_dim, common_rope(config), sample, options.device) {}

  // The last token of a sequence has no next one.
  TokenRange starts(const Piece& piece) const override { return {0, piece.length - 1}; }
  at::Tensor output_gradient(const Decoder& decoder, const at::Tensor& states, const Piece& piece,
                             std::int64_t first) const override {
    const auto* next = prompts_.prompts[piece.prompt].ids.data() + piece.offset + first + 1;
    const std::vector<std::int64_t> ids(next, next + states.size(0));
    const at::Tensor labels = at::tensor(at::ArrayRef<std::int64_t>(ids), at::kLong);
    return label_gradient(decoder, states, labels.to(states.device()));
  }
  void begin_layer(const LayerMoments* partial) override { rows_.begin_layer(partial); }
  void add(const LayerGradient& gradient, const Step& step, std::int64_t, const Unrotation::Rows& rows) override {
    rows_.add(gradient, step, rows);
  }
  at::Tensor finite_rows(const LayerGradient& gradient) const override {
    return finite_rows_of(gradient.k, gradient.v);
  }
  void store(LayerMoments& out) const override { rows_.store(out); }
  void finish(LayerMoments& out) const override { rows_.store(out); }

 private:
  const PromptSet& prompts_;
  RowGradients rows_;
};

}  // namespace

std::int64_t kl_probes(const TokenPlan& plan, const FarPairs& pairs) {
  std::int64_t probes = 0;
  for (const Piece& piece : plan.pieces) probes += std::max<std::int64_t>(piece.length - pairs.sink - pairs.recent, 0);
  return pairs.enabled ? probes : 0;
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

}  // namespace oscar
