#include "verify/served_scores.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <future>

#include "attention/cached_attention.h"
#include "base/errors.h"
#include "base/progress.h"
#include "verify/divergence.h"
#include "verify/forward.h"

namespace oscar {
namespace {

constexpr double kLeastRest = 1e-6;  // of a server's probabilities beside the named ones, which it sums in FP32

void require_known(std::int32_t token, std::int64_t vocabulary) {
  if (token < vocabulary) return;
  throw InputError("the server names token " + std::to_string(token) + ", beyond the model's vocabulary of " +
                   std::to_string(vocabulary) + ": it serves another model than --model");
}

// Scores positions from .. from + answers - 1 of a sequence: answers[i] is about the token after position from + i.
void score_answers(Decoder& decoder, const at::Tensor& hidden, std::int64_t from, std::span<const ServedToken> answers,
                   SequenceScores& scores) {
  const std::int64_t vocabulary = decoder.config().vocabulary, end = from + std::ssize(answers);
  const std::int64_t step = rows_per_block(vocabulary, decoder.options().device);
  for (std::int64_t row = from; row < end; row += step) {
    stop_if_interrupted();
    const std::int64_t rows = std::min(step, end - row);
    const at::Tensor logits = decoder.logits(hidden.narrow(0, row, rows));
    const at::Tensor log_p = at::log_softmax(logits, -1, at::kDouble).to(at::kCPU).contiguous();
    for (std::int64_t i = 0; i < rows; ++i) {
      const ServedToken& served = answers[static_cast<std::size_t>(row - from + i)];
      for (const auto& [token, logprob] : served.top) require_known(token, vocabulary);
      add_served({log_p.const_data_ptr<double>() + i * vocabulary, static_cast<std::size_t>(vocabulary)}, served,
                 scores);
    }
  }
}

}  // namespace

void add_served(std::span<const double> baseline, const ServedToken& served, SequenceScores& scores) {
  const auto at = [&](std::int32_t token) { return baseline[static_cast<std::size_t>(token)]; };
  double kl = 0, named = 0, served_named = 0;
  for (const auto& [token, logprob] : served.top) {
    const double p = std::exp(at(token));
    kl += p > 0 ? p * (at(token) - logprob) : 0.0;
    named += p, served_named += std::exp(logprob);
  }
  const double rest = 1.0 - named;
  if (rest > 0) kl += rest * std::log(rest / std::max(1.0 - served_named, kLeastRest));
  scores.kl.push_back(std::max(kl, 0.0));
  scores.baseline_nll.push_back(-at(served.token));
  scores.nll.push_back(-served.logprob);
  const auto top = static_cast<std::int32_t>(std::max_element(baseline.begin(), baseline.end()) - baseline.begin());
  // Of equally probable tokens, any may be called the top.
  scores.same_top.push_back(served.top.front().first == top || at(served.top.front().first) >= at(top));
}

ServedScores score_served(Decoder& decoder, const KvMethod& baseline, const SequenceSet& set, const ServedPlan& plan,
                          const AskServer& ask) {
  ServedScores scores;
  Progress progress("served", set.sequences.size(), "sequences");
  const auto together = static_cast<std::size_t>(std::max<std::int64_t>(plan.together, 1));
  for (std::size_t begin = 0; begin < set.sequences.size(); begin += together) {
    const std::size_t end = std::min(begin + together, set.sequences.size());
    std::vector<std::future<ServedAnswer>> answers;
    for (std::size_t s = begin; s < end; ++s) {
      answers.push_back(std::async(std::launch::async, [&, s] {
        const std::vector<std::int32_t>& ids = set.sequences[s];
        return ask({std::span(ids).first(ids.size() - static_cast<std::size_t>(plan.generate)), plan.generate});
      }));
    }
    for (std::size_t s = begin; s < end; ++s) {
      const ServedAnswer answer = answers[s - begin].get();
      std::vector<std::int32_t> ids = set.sequences[s];
      const std::int64_t prompt = std::ssize(ids) - plan.generate;
      ids.resize(static_cast<std::size_t>(prompt));
      for (const ServedToken& token : answer.generated) {
        require_known(token.token, decoder.config().vocabulary);
        ids.push_back(token.token);
      }
      SimulatedPrefillAttention attention(baseline);
      const at::Tensor hidden = prefill_hidden(decoder, ids, {&attention}).front();
      SequenceScores& read = scores.prefill.emplace_back();
      read.first_position = plan.first_position;
      const std::span<const ServedToken> told(answer.prompt);
      score_answers(decoder, hidden, plan.first_position, told.subspan(static_cast<std::size_t>(plan.first_position)),
                    read);
      if (plan.generate > 1) {
        SequenceScores& written = scores.decode.emplace_back();
        written.first_position = prompt;
        score_answers(decoder, hidden, prompt, std::span(answer.generated).subspan(1), written);
      }
      progress.advance(1);
    }
  }
  progress.finish();
  return scores;
}

std::vector<bool> served_answers(const TaskPrompt& prompt, bool writes, const AskServer& ask) {
  const std::span ids(prompt.ids);
  const ServedAnswer read = writes ? ServedAnswer{} : ask({ids, 0});
  std::vector<bool> found;
  for (const AnswerSpan& span : prompt.answers) {
    const auto begin = static_cast<std::size_t>(span.begin), size = static_cast<std::size_t>(span.end - span.begin);
    const ServedAnswer written = writes ? ask({ids.first(begin), span.end - span.begin, false}) : ServedAnswer{};
    bool right = true;
    for (std::size_t i = 0; i < size; ++i) {
      const std::int32_t best = writes ? written.generated[i].token : read.prompt[begin + i - 1].top.front().first;
      right = right && best == ids[begin + i];
    }
    found.push_back(right);
  }
  return found;
}

}  // namespace oscar
