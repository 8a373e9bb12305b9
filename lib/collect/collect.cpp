#include "collect/collect.h"

#include <c10/core/InferenceMode.h>

#include <optional>

#include "base/errors.h"
#include "base/output_file.h"
#include "base/parallel.h"
#include "collect/collect_phases.h"
#include "collect/collect_ranks.h"
#include "collect/collect_work.h"
#include "collect/collector.h"
#include "collect/run_record.h"
#include "model/device.h"

namespace oscar {
namespace {

std::string fingerprint_of(const Checkpoint& checkpoint, Timeline* timeline) {
  const Timeline::Phase hashing(timeline, phase::kWeights);
  return checkpoint.fingerprint();
}

}  // namespace

std::vector<std::string> collect_phases() {
  return {phase::kStarting, phase::kPrompts, phase::kRange, phase::kWeights, phase::kForward, phase::kMoments,
          phase::kFarPairs, phase::kSpool,   phase::kSync,  phase::kRanks,   phase::kSaving};
}

fs::path run_directory_of(const CollectOptions& options) {
  if (!options.work_dir.empty()) return options.work_dir;
  fs::path path = options.output;
  path += ".work";
  return path;
}

fs::path work_directory_of(const CollectOptions& options) {
  const fs::path path = run_directory_of(options);
  return options.ranks == nullptr ? path : path / ("rank-" + std::to_string(options.ranks->rank()));
}

CollectReport collect(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                      const CollectOptions& options) {
  if (is_first_rank(options.ranks)) {
    require_output_file(options.output, options.overwrite);
    const AtomicFile probe(options.output);  // fails now, not after hours, if the output cannot be written
  }
  const c10::InferenceMode no_gradients;
  settle_on_device(options.timeline, options.device);
  const std::string fingerprint = fingerprint_of(checkpoint, options.timeline);
  if (plan.tokens == 0 && options.ranks == nullptr) {  // more shards than steps: nothing to run, and nothing to resume
    save_statistics(empty_shard(checkpoint, fingerprint, prompts, plan, options), options.output);
    return {};
  }
  std::optional<Timeline::Phase> opening(std::in_place, options.timeline, phase::kSaving);
  const Json identity = run_identity(fingerprint, prompts, options);
  if (options.ranks != nullptr) require_same_everywhere(*options.ranks, identity);
  WorkDirectory work(work_directory_of(options), identity, options.resume);
  const bool fresh = !fs::exists(work.file("point.safetensors"));
  opening.reset();
  use_threads(work.threads(), kThreadsOfRun);
  try {
    CollectReport report;
    if (plan.tokens > 0) {
      report = run_collector(checkpoint, prompts, plan, options, fingerprint, work);
    } else {  // more ranks than steps
      merge_ranks(options, work, empty_shard(checkpoint, fingerprint, prompts, plan, options));
    }
    const Timeline::Phase saving(options.timeline, phase::kSaving);
    work.remove();
    if (options.ranks != nullptr) remove_run_directory(options);
    return report;
  } catch (const InterruptedError& e) {
    if (e.resumes) throw;
    throw interrupted_run(options);  // while waiting for other ranks
  } catch (const NumericalError&) {
    if (options.work_dir.empty()) work.remove();  // it would fail again at the same token
    throw;
  } catch (const InputError&) {
    // For example, a checkpoint lacks a tensor. A repaired checkpoint is another model, so there is nothing to resume.
    if (fresh && options.work_dir.empty()) work.remove();
    throw;
  }
}

}  // namespace oscar
