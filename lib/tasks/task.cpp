#include "tasks/task.h"

#include <algorithm>

#include "base/errors.h"
#include "report/sample_statistics.h"
#include "tasks/draft.h"

namespace oscar {
namespace {

struct Entry {
  const char* name;
  TaskBuilder build;
};
constexpr Entry kTasks[] = {{"niah", make_needle_task},
                            {"niah-multikey", make_multikey_task},
                            {"niah-multivalue", make_multivalue_task},
                            {"niah-multiquery", make_multiquery_task},
                            {"vt", make_tracking_task}};

constexpr int kDepthRows = 5;  // rows of the depth grid in the report

}  // namespace

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kTasks) names.emplace_back(entry.name);
  return names;
}

std::vector<std::string> expand_tasks(const std::vector<std::string>& names) {
  std::vector<std::string> tasks;
  const std::vector<std::string> known = task_names();
  for (const std::string& name : names) {
    if (name == "all") {
      for (const std::string& task : known) {
        if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(task);
      }
      continue;
    }
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string list;
      for (const std::string& task : known) list += (list.empty() ? "" : ", ") + task;
      throw UsageError("unknown task '" + name + "': there is " + list);
    }
    tasks.push_back(name);
  }
  return tasks;
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

TaskScore score_task(const TaskSet& set, const FoundAnswers& found, const FoundAnswers& baseline) {
  TaskScore score{.task = set.task, .length = set.length, .prompts = static_cast<std::int64_t>(set.prompts.size())};
  for (int row = 0; row < kDepthRows; ++row) {
    score.depths.push_back({static_cast<double>(row) / kDepthRows, static_cast<double>(row + 1) / kDepthRows, 0, 0});
  }
  for (std::size_t i = 0; i < set.prompts.size(); ++i) {
    const int row = std::min(static_cast<int>(set.prompts[i].depth * kDepthRows), kDepthRows - 1);
    DepthScore& depth = score.depths[static_cast<std::size_t>(row)];
    for (std::size_t a = 0; a < set.prompts[i].answers.size(); ++a) {
      ++score.references;
      if (!baseline[i][a]) continue;
      ++score.n;
      ++depth.prompts;
      if (!found[i][a]) continue;
      ++score.solved;
      ++depth.solved;
    }
  }
  if (score.n > 0) {
    score.score = static_cast<double>(score.solved) / static_cast<double>(score.n);
    score.interval = wilson_interval(score.solved, score.n);
  }
  return score;
}

}  // namespace oscar
