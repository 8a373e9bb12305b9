#include "verify/tasks/task.h"

#include <algorithm>

#include "base/errors.h"
#include "verify/statistics.h"
#include "verify/tasks/needle.h"

namespace oscar {
namespace {

using Builder = TaskSet (*)(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer);

struct Entry {
  const char* name;
  Builder build;
};
constexpr Entry kTasks[] = {{"niah", make_needle_task}};

constexpr int kDepthRows = 5;  // rows of the depth grid in the report

}  // namespace

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kTasks) names.emplace_back(entry.name);
  return names;
}

TaskSet make_task(const std::string& task, std::int64_t length, std::int64_t prompts, std::uint64_t seed,
                  const Tokenizer& tokenizer) {
  std::string known;
  for (const Entry& entry : kTasks) {
    if (task == entry.name) return entry.build(length, prompts, seed, tokenizer);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw UsageError("unknown task '" + task + "': there is " + known);
}

TaskScore score_task(const TaskSet& set, const std::vector<bool>& solved, const std::vector<bool>& baseline) {
  TaskScore score;
  score.task = set.task;
  score.length = set.length;
  score.prompts = static_cast<std::int64_t>(set.prompts.size());
  for (int row = 0; row < kDepthRows; ++row) {
    score.depths.push_back({static_cast<double>(row) / kDepthRows, static_cast<double>(row + 1) / kDepthRows, 0, 0});
  }
  for (std::size_t i = 0; i < set.prompts.size(); ++i) {
    if (!baseline[i]) continue;
    const int row = std::min(static_cast<int>(set.prompts[i].depth * kDepthRows), kDepthRows - 1);
    DepthScore& depth = score.depths[static_cast<std::size_t>(row)];
    ++score.n;
    ++depth.prompts;
    if (!solved[i]) continue;
    ++score.solved;
    ++depth.solved;
  }
  if (score.n > 0) {
    score.score = static_cast<double>(score.solved) / static_cast<double>(score.n);
    score.standard_error = proportion_error(*score.score, score.n);
  }
  return score;
}

}  // namespace oscar
