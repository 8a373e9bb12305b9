// What a backward pass of oscar-collect is for: the KL metric (--metric kl), whose labels are drawn from the model for
// tokens that read far keys, or the squared gradients of sampled rows (--row-gradients), whose labels are the true next
// tokens. The pass itself is backward_pass.h.
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

// Labels of a sequence: for its tokens [first, last).
struct LabelRange {
  std::int64_t first = 0, last = 0;
  bool empty() const { return last <= first; }
};

class BackwardTask {
 public:
  virtual ~BackwardTask() = default;
  virtual LabelRange labels(const Piece& piece) const = 0;  // empty: the sequence has none
  // states [count, hidden]: of tokens [first, first + count), all with labels. d log p(label) of each / d its state.
  virtual at::Tensor label_gradient(const Decoder& decoder, const at::Tensor& states, const Piece& piece,
                                    std::int64_t first) const = 0;
  virtual void begin_layer(const LayerMoments* partial) = 0;  // partial: null, or sums to go on from
  // Of a step of the plan, whose sequences have `labels` labels. rows: the rotations of its positions.
  virtual void add(const LayerGradient& gradient, const Step& step, std::int64_t labels,
                   const Unrotation::Rows& rows) = 0;
  // [T] bool: the rows of a gradient whose share of the sums is finite.
  virtual at::Tensor finite_rows(const LayerGradient& gradient) const = 0;
  virtual void store(LayerMoments& out) const = 0;   // the sums as they are
  virtual void finish(LayerMoments& out) const = 0;  // and as they go into the statistics
};

// Labels that the KL metric draws: for tokens in position sink + recent or later. Shorter sequences have none.
std::int64_t kl_labels(const TokenPlan& plan, const FarPairs& pairs);

std::unique_ptr<BackwardTask> make_kl_task(const ModelConfig& config, const PromptSet& prompts,
                                           const CollectOptions& options);
std::unique_ptr<BackwardTask> make_row_gradient_task(const ModelConfig& config, const PromptSet& prompts,
                                                     const CollectOptions& options,
                                                     const std::vector<SampledToken>& sample);

}  // namespace oscar
