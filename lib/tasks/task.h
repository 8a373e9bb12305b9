// Synthetic tasks in the construction of RULER (NVIDIA, arXiv 2404.06654), written by program in our own words. A task
// is a list of prompts, each with its right continuation; adding a task is adding a builder to the table in task.cpp.
//
// Scoring is by teacher forcing. A prompt has one or more reference strings, and one counts as found when the most
// probable token is the right one at every token of it, given the right tokens before it. With one reference, greedy
// decoding would write it exactly in these cases and in no other; with several, the order is that of the prompt, which
// the prompt states. One pass over prompt and answer is much cheaper than generating.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/report.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

struct AnswerSpan {
  std::int64_t begin = 0, end = 0;  // tokens of one reference string
};

struct TaskPrompt {
  std::vector<std::int32_t> ids;    // prompt and answer
  std::vector<AnswerSpan> answers;  // in the order of the text
  double depth = 0;                 // of what is asked for, 0 (start) to 1 (end of the haystack)
};

struct TaskSet {
  std::string task;
  std::int64_t length = 0;  // no prompt with its answer is longer
  std::vector<TaskPrompt> prompts;
};

std::vector<std::string> task_names();  // "niah", "niah-multikey", ...
// "niah,vt" and "all", which stands for every task. UsageError with the list for an unknown name.
std::vector<std::string> expand_tasks(const std::vector<std::string>& names);

// UsageError for an unknown task (with the list), or a length that the task does not fit in.
TaskSet make_task(const std::string& task, std::int64_t length, std::int64_t prompts, std::uint64_t seed,
                  const Tokenizer& tokenizer);

// Which references of each prompt were found: [prompts][answers].
using FoundAnswers = std::vector<std::vector<bool>>;

// Score of one method: the share of reference strings, among those that the baseline finds.
TaskScore score_task(const TaskSet& set, const FoundAnswers& found, const FoundAnswers& baseline);

}  // namespace oscar
