// What a running engine answers, against the BF16 cache of this process: log-probabilities of the text's own tokens,
// which its prefill gives, and of tokens that it writes after the text, which its decode kernels give.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/kv_method.h"
#include "model/decoder.h"
#include "report/metrics.h"
#include "server/answers.h"
#include "tasks/task.h"
#include "text/sequences.h"

namespace oscar {

struct ServedPlan {
  std::int64_t first_position = 320;  // first scored position of a prompt
  std::int64_t generate = 64;         // tokens after each prompt, in place of the end of its sequence; 0: none
  std::int64_t together = 1;          // requests at once
};

struct ServedScores {
  std::vector<SequenceScores> prefill, decode;  // [S]; decode: empty if nothing is generated
};

using AskServer = std::function<ServedAnswer(const ServedRequest&)>;

// ask: Server::ask(), called from several threads. The full distribution of the server is not known,
// so KL is that of its most probable tokens and of all others together, which is at most the KL over the vocabulary.
// The first generated token comes from the prefill and is left out of `decode`. InputError for a token outside the
// vocabulary; errors of ask().
ServedScores score_served(Decoder& decoder, const KvMethod& baseline, const SequenceSet& set, const ServedPlan& plan,
                          const AskServer& ask);

// For each reference of a prompt: whether the server gives it, by the most probable tokens of its prefill, or by what
// it writes (`writes`), which its decode kernels give from the second token on.
std::vector<bool> served_answers(const TaskPrompt& prompt, bool writes, const AskServer& ask);

// Adds one place of a server's answer. baseline [V]: natural logarithms of the baseline's probabilities, FP64.
void add_served(std::span<const double> baseline, const ServedToken& served, SequenceScores& scores);

}  // namespace oscar
