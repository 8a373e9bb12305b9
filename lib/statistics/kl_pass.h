// The backward pass of oscar-collect --metric kl, behind the forward pass: labels are drawn at the output of the last
// layer, then the layers run backward one by one over the hidden states that the forward pass has kept, each with the
// weights and the graph of one sequence in memory. What flows from layer to layer, dL/d of the hidden states, lives in
// two files by turns. Costs about as much as two more forward passes: one again, one backward.
//
// Tokens from position sink + recent on have labels: earlier ones read no far key. Shorter sequences are left out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "statistics/collect.h"
#include "statistics/collect_work.h"
#include "statistics/kl_moments.h"
#include "statistics/spool.h"

namespace oscar {

// Labels that a run draws: tokens in position sink + recent or later.
std::int64_t kl_labels(const TokenPlan& plan, const FarPairs& pairs);

// Points behind the forward pass: [layers, kl_last_point()], see ResumePoint.
inline std::int64_t kl_last_point(std::int64_t layers) { return 2 * layers + 1; }

class KlPass {
 public:
  // save: writes a resume point {layer, step, sums}. tick: after each sequence, with the tokens done; may throw.
  struct Hooks {
    std::function<void(std::int64_t layer, std::int64_t step, const LayerMoments& sums)> save;
    std::function<bool()> due;  // a checkpoint is due, or the run is to stop
    std::function<void(std::int64_t point, std::int64_t tokens)> tick;
  };
  KlPass(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan, const CollectOptions& options,
         WorkDirectory& work, Hooks hooks);

  // From {point, step, sums} on, to the end. Puts the KL metric into the finished layers of the work directory.
  void run(std::int64_t point, std::int64_t step, const LayerMoments* sums);

 private:
  void draw(std::int64_t first);
  void run_layer(std::int64_t point, std::int64_t first, const LayerMoments* sums);
  Spool gradients(std::int64_t point, bool keep) const;
  Spool hidden(std::int64_t layer) const;
  std::int64_t near() const { return options_.far.sink + options_.far.recent; }
  void checkpoint(std::int64_t point, std::size_t piece, Spool& written, const KlAccumulator* sums);

  const ModelConfig& config_;
  const PromptSet& prompts_;
  const TokenPlan& plan_;
  const CollectOptions& options_;
  WorkDirectory& work_;
  Hooks hooks_;
  Decoder decoder_;
  Unrotation unrotation_;
};

}  // namespace oscar
