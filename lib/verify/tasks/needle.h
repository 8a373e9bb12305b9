// niah: one needle in a haystack of noise (RULER's niah_single_1: a two-word key, a seven-digit value, five short
// sentences repeated as haystack, the needle at evenly spaced depths). All sentences are our own.
#pragma once

#include "verify/tasks/task.h"

namespace oscar {

TaskSet make_needle_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer);

}  // namespace oscar
