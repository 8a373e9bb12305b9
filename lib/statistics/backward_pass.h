// The backward passes of oscar-collect, behind the forward pass: each starts from labels at the output of the last
// layer, then the layers run backward one by one over the hidden states that the forward pass has kept, each with the
// weights and the graph of one sequence in memory. What flows from layer to layer, dL/d of the hidden states, lives in
// two files by turns. A pass costs about as much as two more forward passes: one again, without the attention whose
// outputs were kept (attention_outputs.h), one backward.
//
// What a pass is for stands behind BackwardTask: the KL metric (--metric kl, KlTask), whose labels are drawn from the
// model for tokens that read far keys, and the squared gradients of sampled rows (--row-gradients, RowGradientTask),
// whose labels are the true next tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "statistics/collect.h"
#include "statistics/collect_work.h"
#include "statistics/kl_moments.h"
#include "statistics/row_gradients.h"
#include "statistics/row_sample.h"
#include "statistics/run_points.h"
#include "statistics/spool.h"

namespace oscar {

// Labels that the KL metric draws: for tokens in position sink + recent or later. Shorter sequences are left out.
std::int64_t kl_labels(const TokenPlan& plan, const FarPairs& pairs);

// Labels of a sequence: for its tokens [first, last).
struct LabelRange {
  std::int64_t first = 0, last = 0;
  bool empty() const { return last <= first; }
};

class BackwardTask {
 public:
  virtual ~BackwardTask() = default;
  virtual LabelRange labels(const Piece& piece) const = 0;  // empty: the sequence is left out
  // states [count, hidden]: of tokens [first, first + count), all with labels. d log p(label) of each / d its state.
  virtual at::Tensor label_gradient(const Decoder& decoder, const at::Tensor& states, const Piece& piece,
                                    std::int64_t first) const = 0;
  virtual void begin_layer(const LayerMoments* partial) = 0;  // partial: null, or sums to go on from
  // rows: of the sequence's positions. False: the gradient holds NaN or infinity.
  virtual bool add(const LayerGradient& gradient, const Piece& piece, const Unrotation::Rows& rows) = 0;
  virtual void store(LayerMoments& out) const = 0;   // the sums as they are
  virtual void finish(LayerMoments& out) const = 0;  // and as they go into the statistics
};

std::unique_ptr<BackwardTask> make_kl_task(const ModelConfig& config, const PromptSet& prompts,
                                           const CollectOptions& options);
std::unique_ptr<BackwardTask> make_row_gradient_task(const ModelConfig& config, const PromptSet& prompts,
                                                     const CollectOptions& options,
                                                     const std::vector<SampledToken>& sample);

// base: the point at which the pass begins (run_points.h).
class BackwardPass {
 public:
  // save: writes a resume point {layer, step, sums}. tick: after each sequence, with the tokens done; may throw.
  struct Hooks {
    std::function<void(std::int64_t layer, std::int64_t step, const LayerMoments& sums)> save;
    std::function<bool()> due;  // a checkpoint is due, or the run is to stop
    std::function<void(std::int64_t point, std::int64_t tokens)> tick;
  };
  BackwardPass(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
               const CollectOptions& options, WorkDirectory& work, BackwardTask& task, std::int64_t base, Hooks hooks);

  // From {point, step, sums} on, to the end. Puts what the task found into the finished layers of the work directory.
  void run(std::int64_t point, std::int64_t step, const LayerMoments* sums);

 private:
  void start(std::int64_t first);
  void run_layer(std::int64_t point, std::int64_t first, const LayerMoments* sums);
  Spool gradients(std::int64_t point, bool keep) const;
  Spool hidden(std::int64_t layer) const;
  void checkpoint(std::int64_t point, std::size_t piece, Spool& written, const BackwardTask* sums);

  const ModelConfig& config_;
  const PromptSet& prompts_;
  const TokenPlan& plan_;
  const CollectOptions& options_;
  WorkDirectory& work_;
  BackwardTask& task_;
  std::int64_t base_;
  Hooks hooks_;
  Decoder decoder_;
  Unrotation unrotation_;
};

}  // namespace oscar
