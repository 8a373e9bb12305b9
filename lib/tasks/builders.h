// The task builders. prompts: the number of prompts; their depths are spread evenly.
#pragma once

#include "tasks/task.h"

namespace oscar {

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
