// The backward passes of oscar-collect, behind the forward pass: each starts at the outputs of the last layer,
// then the layers run backward one by one over the hidden states that the forward pass has kept, each with the
// weights and the graph of one step in memory. A pass has stages: the outputs, then the layers from the last one on.
// What flows from stage to stage is dL/d of the hidden states. A pass costs about as much as two more forward passes:
// one again, without the attention whose outputs were kept (attention_outputs.h), one backward.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "statistics/backward_task.h"
#include "statistics/collect_work.h"
#include "statistics/finished_layers.h"
#include "statistics/hidden_states.h"
#include "statistics/late_number.h"
#include "statistics/run_points.h"

namespace oscar {

// Tokens of a step that the pass starts from.
std::int64_t starts_of(const BackwardTask& task, const TokenPlan& plan, const Step& step);

class BackwardPass {
 public:
  // What it reads of the run, all longer-lived: states has those of all layers.
  struct Run {
    const Checkpoint& checkpoint;
    const PromptSet& prompts;
    const TokenPlan& plan;
    const CollectOptions& options;
    WorkDirectory& work;
    HiddenStates& states;
    FinishedLayers& finished;
  };
  struct Hooks {
    // Writes a resume point {point, step, sums}; everything that it goes on from is on disk.
    std::function<void(std::int64_t point, std::int64_t step, const LayerMoments& sums)> save;
    std::function<bool(std::uint64_t unsaved)> due;                     // a checkpoint is due, or the run is to stop
    std::function<void(std::int64_t point, std::int64_t tokens)> tick;  // after each step; may throw
  };
  // name: of the files of its gradients. base: the point at which the pass begins (run_points.h). last: no pass follows
  // that reads the states again.
  BackwardPass(const Run& run, BackwardTask& task, std::string name, std::int64_t base, bool last, Hooks hooks);

  // From {point, step, sums} on, to the end. Puts what the task found into the finished layers.
  void run(std::int64_t point, std::int64_t step, const LayerMoments* sums);

 private:
  // Rows of a step whose finiteness is read behind the next step, so that a GPU need not wait for the CPU.
  struct Shown {
    const Step* step;
    at::Tensor rows;  // [T] bool
    LateNumber all;
  };
  void open_gradients(std::int64_t stage, std::int64_t step);
  void start(std::int64_t first);
  void run_layer(std::int64_t stage, std::int64_t first, const LayerMoments* sums);
  void after_step(std::int64_t stage, std::size_t step, const at::Tensor& finite, const BackwardTask* sums);
  bool due() const;
  void check_behind(std::int64_t stage);
  void end_stage(std::int64_t stage);
  void save(std::int64_t stage, std::int64_t step, const LayerMoments& sums);

  Run run_;
  const ModelConfig& config_;
  BackwardTask& task_;
  std::string name_;
  std::int64_t base_;
  bool last_;
  Hooks hooks_;
  Decoder decoder_;
  Unrotation unrotation_;
  std::optional<HiddenStates> gradients_;  // "layer": the stage
  std::optional<Shown> behind_;
};

}  // namespace oscar
