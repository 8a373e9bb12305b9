#include "collect/moment_observer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "collect/collect_phases.h"

namespace oscar {
namespace {

// First row of x [T, ...] that holds NaN or infinity; -1: none.
std::int64_t first_bad_row(const at::Tensor& x) {
  const at::Tensor bad = x.isfinite().logical_not().flatten(1).any(1);
  const at::Tensor rows = bad.nonzero();
  return rows.numel() == 0 ? -1 : rows[0][0].item<std::int64_t>();
}

}  // namespace

std::string describe_row(const PromptSet& prompts, const TokenPlan& plan, const Step& step, std::int64_t row) {
  const std::int64_t token = step.position + row;
  for (std::size_t i = step.first; i < step.first + step.count; ++i) {
    const Piece& piece = plan.pieces[i];
    if (token >= piece.position + piece.length) continue;
    std::int64_t place = piece.position;  // position of the segment in the run
    for (const Segment& part : piece.parts) {
      if (token < place + part.length) {
        return prompts.prompts[part.prompt].source + ", token " + std::to_string(part.offset + token - place);
      }
      place += part.length;
    }
  }
  return "an unknown prompt";
}

MomentObserver::MomentObserver(Attention& inner, const ModelConfig& config, const PromptSet& prompts,
                               const TokenPlan& plan, std::vector<SampledToken> sample, const FarPairs& pairs,
                               at::Device device, Timeline* timeline)
    : AttentionObserver(inner),
      config_(config),
      prompts_(prompts),
      plan_(plan),
      sample_(std::move(sample)),
      device_(device),
      moments_(config.kv_heads, config.head_dim, device),
      far_pairs_(config.query_heads, config.kv_heads, config.head_dim, pairs, device),
      unrotation_(common_rope(config), device),
      pre_rope_(config.kv_heads, config.head_dim, device),
      residual_(pairs, device),
      timeline_(timeline) {
  for (std::size_t row = 0; row < sample_.size(); ++row) {
    by_token_.emplace_back(sample_[row].token, static_cast<std::int64_t>(row));
  }
  std::sort(by_token_.begin(), by_token_.end());
}

void MomentObserver::begin_layer(const at::Tensor& o_weight) {
  const auto rows = static_cast<std::int64_t>(sample_.size());
  moments_ = MomentAccumulator(config_.kv_heads, config_.head_dim, device_);
  far_pairs_.begin_layer(o_weight);
  pre_rope_.begin_layer();
  residual_.begin_layer();
  const auto options = at::TensorOptions(at::kFloat).device(device_);
  rows_q_ = at::zeros({rows, config_.query_heads, config_.head_dim}, options);
  rows_k_ = at::zeros({rows, config_.kv_heads, config_.head_dim}, options);
  rows_v_ = at::zeros({rows, config_.kv_heads, config_.head_dim}, options);
}

void MomentObserver::begin_step(const Step& step, MirroredSpool& keys_values) {
  step_ = &step;
  keys_values_ = &keys_values;
}

void MomentObserver::observe(const AttentionInput& input, const at::Tensor& output) {
  const Timeline::Phase moments(timeline_, phase::kMoments);
  const at::Tensor keys_values = at::cat({input.k, input.v}, 1);
  moments_.add(input.q, keys_values, output);
  const Unrotation::Rows& rows = unrotation_.rows_of(*input.batch);
  pre_rope_.add(input, rows);
  seen_ = Seen{*step_, input, output, LateNumber(moments_.trace())};
  seen_->input.batch = nullptr;
  if (!device_.is_cuda()) check(*seen_);  // there is no reason to continue
  keep_rows(input);
  {
    const Timeline::Phase spool(timeline_, phase::kSpool);
    keys_values_->write(step_->position, keys_values);
  }
  const Timeline::Phase far(timeline_, phase::kFarPairs);
  far_pairs_.add(input, output, rows);
}

void MomentObserver::added(const AttentionInput& input, const at::Tensor& residual, const at::Tensor& branch) {
  const Timeline::Phase moments(timeline_, phase::kMoments);
  residual_.add(*input.batch, residual, branch);
}

std::optional<MomentObserver::Seen> MomentObserver::take_seen() { return std::exchange(seen_, std::nullopt); }

void MomentObserver::check(const Seen& seen) const {
  if (!std::isfinite(seen.total.value())) refuse(seen);
}

const MomentObserver::StepRows& MomentObserver::step_rows() {
  const auto [found, added] = rows_of_.try_emplace(step_->position);
  if (!added) return found->second;
  std::vector<std::int64_t> from, to;
  const auto begin = std::lower_bound(by_token_.begin(), by_token_.end(), std::pair{step_->position, std::int64_t{0}});
  for (auto it = begin; it != by_token_.end() && it->first < step_->position + step_->tokens; ++it) {
    from.push_back(it->first - step_->position);
    to.push_back(it->second);
  }
  if (!from.empty()) {
    found->second.from = at::tensor(at::ArrayRef<std::int64_t>(from), at::kLong).to(device_);
    found->second.to = at::tensor(at::ArrayRef<std::int64_t>(to), at::kLong).to(device_);
  }
  return found->second;
}

void MomentObserver::keep_rows(const AttentionInput& input) {
  const StepRows& rows = step_rows();
  if (!rows.from.defined()) return;
  const auto keep = [&](at::Tensor& kept, const at::Tensor& x) {
    kept.index_copy_(0, rows.to, x.index({rows.from}).to(kept.scalar_type()));
  };
  keep(rows_q_, input.q);
  keep(rows_k_, input.k);
  keep(rows_v_, input.v);
}

void MomentObserver::refuse(const Seen& seen) const {
  const AttentionInput& input = seen.input;
  const std::string layer = "layer " + std::to_string(config_.kv_layer(input.layer)) + ": ";
  const std::pair<const char*, const at::Tensor*> all[] = {
      {"query", &input.q}, {"key", &input.k}, {"value", &input.v}, {"attention output", &seen.output}};
  for (const auto& [name, tensor] : all) {
    const std::int64_t row = first_bad_row(*tensor);
    if (row < 0) continue;
    throw NumericalError(layer + "the " + name + " of " + describe_row(prompts_, plan_, seen.step, row) +
                         " holds NaN or infinity; check the checkpoint, or try --dtype float32");
  }
  throw NumericalError(layer + "activations of " + describe_row(prompts_, plan_, seen.step, 0) +
                       " and the prompts after it are so large that their squares overflow; check the checkpoint");
}

void MomentObserver::finish_layer(LayerMoments& out) const {
  moments_.finish(out);
  far_pairs_.finish(out);
  pre_rope_.finish(out);
  residual_.finish(out);
  out.rows_q = rows_q_, out.rows_k = rows_k_, out.rows_v = rows_v_;
  for (const SampledToken& token : sample_) {
    out.row_priority.push_back(token.priority);
    out.row_position.push_back(token.position);
  }
}

}  // namespace oscar
