// A task prompt as text, and its conversion to tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tasks/task.h"

namespace oscar {

struct AnswerPiece {
  std::string before;     // text before the reference: " ", ", "
  std::string reference;  // the expected answer
};

struct TaskDraft {
  std::string prompt;
  std::vector<AnswerPiece> answer;
  double depth = 0;
};

// Encodes prompt and answer together, as in normal text. A reference starts where the encoding of the text before it
// ends or first differs.
TaskPrompt encode_draft(const TaskDraft& draft, const Tokenizer& tokenizer);

// The largest prompt of at most `length` tokens. draft(n) has n units of filler (sentences, words), and each group of
// `step` units has about the same size. UsageError when draft(step) does not fit.
TaskPrompt fit_draft(const std::string& task, std::int64_t length, std::int64_t step,
                     const std::function<TaskDraft(std::int64_t)>& draft, const Tokenizer& tokenizer);

// Random choices for one prompt. The n-th choice depends only on seed, prompt and n.
class TaskRandom {
 public:
  TaskRandom(std::uint64_t seed, std::int64_t length, std::int64_t prompt);
  std::uint64_t below(std::uint64_t count);  // 0 .. count - 1
  std::string digits(int count);             // the first one is not 0
  std::string letters(int count);            // uppercase
  std::string key();                         // "amber harbour"

 private:
  std::uint64_t seed_, stream_, next_ = 0;
};

std::string noise_sentence(std::int64_t index);  // cycles through five short sentences, each with a trailing space

// Noise with inserts: inserts[i] comes before sentence round(depths[i] * sentences).
std::string noise_with(std::int64_t sentences, const std::vector<std::string>& inserts,
                       const std::vector<double>& depths);

// The task builders. prompts: the number of prompts; their depths are spread evenly.

using TaskBuilder = TaskSet (*)(std::int64_t length, std::int64_t prompts, std::uint64_t seed,
                                const Tokenizer& tokenizer);

// Needles in a haystack: one key and value in noise; one among needles with other keys; four values for one key; four
// requested keys. RULER's niah_single_1, multikey_2, multivalue and multiquery.
TaskSet make_needle_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer);
TaskSet make_multikey_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer);
TaskSet make_multivalue_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer);
TaskSet make_multiquery_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer);

// Variable tracking: a chain of assignments in noise; the answer lists the names that hold the value. RULER's vt, 1
// chain, 4 hops.
TaskSet make_tracking_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer);

// Spreads 0 to 1 over the prompts; 0.5 for a single prompt.
double spread_depth(std::int64_t prompt, std::int64_t prompts);

}  // namespace oscar
