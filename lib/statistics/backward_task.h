// What a backward pass of oscar-collect is for: the KL metric (--metric kl), which starts from a probe of the
// distribution of each token that reads far keys, or the squared gradients of sampled rows (--row-gradients), which
// start from the true next tokens. The pass itself is backward_pass.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "statistics/collect.h"
#include "statistics/layer_gradient.h"
#include "statistics/row_sample.h"
#include "statistics/unrotation.h"

namespace oscar {

// Tokens [first, last) of a sequence.
struct TokenRange {
  std::int64_t first = 0, last = 0;
  bool empty() const { return last <= first; }
};

class BackwardTask {
 public:
  virtual ~BackwardTask() = default;
  virtual TokenRange starts(const Piece& piece) const = 0;  // whose outputs the pass starts from
  // states [count, hidden]: of such tokens [first, first + count). What the pass starts from: dL/d of each.
  virtual at::Tensor output_gradient(const Decoder& decoder, const at::Tensor& states, const Piece& piece,
                                     std::int64_t first) const = 0;
  virtual void begin_layer(const LayerMoments* partial) = 0;  // partial: null, or sums to go on from
  // Of a step of the plan in which the pass starts from `starts` tokens. rows: the rotations of its positions.
  virtual void add(const LayerGradient& gradient, const Step& step, std::int64_t starts,
                   const Unrotation::Rows& rows) = 0;
  // [T] bool: the rows of a gradient whose share of the sums is finite.
  virtual at::Tensor finite_rows(const LayerGradient& gradient) const = 0;
  virtual void store(LayerMoments& out) const = 0;   // the sums as they are
  virtual void finish(LayerMoments& out) const = 0;  // and as they go into the statistics
};

// Tokens that the KL metric has a probe of: those in position sink + recent or later. Shorter sequences have none.
std::int64_t kl_probes(const TokenPlan& plan, const FarPairs& pairs);

std::unique_ptr<BackwardTask> make_kl_task(const ModelConfig& config, const PromptSet& prompts,
                                           const CollectOptions& options);
std::unique_ptr<BackwardTask> make_row_gradient_task(const ModelConfig& config, const PromptSet& prompts,
                                                     const CollectOptions& options,
                                                     const std::vector<SampledToken>& sample);

}  // namespace oscar
