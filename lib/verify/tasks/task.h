// Synthetic tasks in the construction of RULER (NVIDIA, arXiv 2404.06654), written by program in our own words. A task
// is a list of prompts, each with the one right continuation; adding a task is adding a builder to the table in
// task.cpp.
//
// Scoring is by teacher forcing: a prompt is solved when the most probable token is the right one at every token of
// the answer, given the right tokens before it. Greedy decoding would write the answer exactly in these cases and in no
// other, and one pass over prompt and answer is much cheaper than generating.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "verify/report.h"

namespace oscar {

struct TaskPrompt {
  std::vector<std::int32_t> ids;  // prompt and answer
  std::int64_t answer_start = 0;  // index of the first token of the answer
  double depth = 0;               // of the needle, 0 (start) to 1 (end of the haystack)
};

struct TaskSet {
  std::string task;
  std::int64_t length = 0;  // no prompt with its answer is longer
  std::vector<TaskPrompt> prompts;
};

std::vector<std::string> task_names();  // "niah"

// UsageError for an unknown task (with the list), or a length that the task does not fit in.
TaskSet make_task(const std::string& task, std::int64_t length, std::int64_t prompts, std::uint64_t seed,
                  const Tokenizer& tokenizer);

// Score of one method, counting only prompts that the baseline solves. solved, baseline: [prompts].
TaskScore score_task(const TaskSet& set, const std::vector<bool>& solved, const std::vector<bool>& baseline);

}  // namespace oscar
