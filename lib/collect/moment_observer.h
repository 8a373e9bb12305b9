// Observes one layer's attention while sequences pass through it: collects sums, the row sample, and K and V for the
// second pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/timeline.h"
#include "checkpoint/model_config.h"
#include "collect/accumulator.h"
#include "collect/device_values.h"
#include "collect/far_pairs.h"
#include "collect/pre_rope_moments.h"
#include "collect/residual_energy.h"
#include "collect/row_sample.h"
#include "collect/spool.h"
#include "collect/token_plan.h"
#include "model/attention.h"

namespace oscar {

// "prompts.jsonl:12, token 57": the origin of row `row` of a step.
std::string describe_row(const PromptSet& prompts, const TokenPlan& plan, const Step& step, std::int64_t row);

class MomentObserver : public AttentionObserver {
 public:
  MomentObserver(Attention& inner, const ModelConfig& config, const PromptSet& prompts, const TokenPlan& plan,
                 std::vector<SampledToken> sample, const FarPairs& pairs, at::Device device,
                 Timeline* timeline = nullptr);  // gets the phases kMoments, kFarPairs and kSpool

  void begin_layer(const at::Tensor& o_weight);                   // [hidden, Hq d] of the layer
  void begin_step(const Step& step, MirroredSpool& keys_values);  // rows [2 * Hkv, d]: K heads, then V heads
  void finish_layer(LayerMoments& out) const;                     // without energy and W_O; on the device
  // What a step left to check. It is checked apart from observe(), so that the GPU need not wait in the middle of the
  // layer.
  struct Seen {
    Step step;
    AttentionInput input;  // without its batch
    at::Tensor output;
    LateNumber total;  // sum of all squares so far
  };
  std::optional<Seen> take_seen();     // call after each step's forward pass; nullopt: no attention was observed in it
  void check(const Seen& seen) const;  // NumericalError naming the place if it is not finite
  void added(const AttentionInput& input, const at::Tensor& residual, const at::Tensor& branch) override;

 protected:
  void observe(const AttentionInput& input, const at::Tensor& output) override;

 private:
  struct StepRows {
    at::Tensor from, to;  // sampled rows: index in step and in sample, int64 on the device; undefined: none
  };
  const StepRows& step_rows();
  void keep_rows(const AttentionInput& input);
  [[noreturn]] void refuse(const Seen& seen) const;

  const ModelConfig& config_;
  const PromptSet& prompts_;
  const TokenPlan& plan_;
  std::vector<SampledToken> sample_;                             // ascending priority: the order of the rows
  std::vector<std::pair<std::int64_t, std::int64_t>> by_token_;  // (token, row), ascending token
  at::Device device_;
  MomentAccumulator moments_;
  FarPairAccumulator far_pairs_;
  Unrotation unrotation_;
  PreRopeAccumulator pre_rope_;
  ResidualAccumulator residual_;
  at::Tensor rows_q_, rows_k_, rows_v_;       // FP32 on the device
  std::map<std::int64_t, StepRows> rows_of_;  // by position of the step; the same in every layer
  const Step* step_ = nullptr;
  MirroredSpool* keys_values_ = nullptr;
  std::optional<Seen> seen_;
  Timeline* timeline_;
};

}  // namespace oscar
