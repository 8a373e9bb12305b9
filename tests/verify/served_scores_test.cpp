#include "verify/served_scores.h"

#include <gtest/gtest.h>

#include <cmath>

namespace oscar {
namespace {

// KL over the named tokens and all others together, from the formula.
TEST(ServedScores, KlOfTheNamedTokensAndTheRest) {
  const std::vector<double> p = {0.5, 0.3, 0.1, 0.06, 0.04};
  std::vector<double> logs;
  for (const double x : p) logs.push_back(std::log(x));
  const ServedToken served{1, std::log(0.4), {{1, std::log(0.4)}, {0, std::log(0.35)}}};
  SequenceScores scores;
  add_served(logs, served, scores);
  const double kl = 0.5 * std::log(0.5 / 0.35) + 0.3 * std::log(0.3 / 0.4) + 0.2 * std::log(0.2 / 0.25);
  EXPECT_NEAR(scores.kl.at(0), kl, 1e-12);
  EXPECT_NEAR(scores.nll.at(0), -std::log(0.4), 1e-12);
  EXPECT_NEAR(scores.baseline_nll.at(0), -std::log(0.3), 1e-12);
  EXPECT_FALSE(scores.same_top.at(0));  // token 1 for token 0
}

TEST(ServedScores, TheSameDistributionHasNoKlAndATieIsTheSame) {
  const std::vector<double> logs = {std::log(0.45), std::log(0.45), std::log(0.1)};
  SequenceScores scores;
  add_served(logs, {2, logs[2], {{1, logs[1]}, {0, logs[0]}, {2, logs[2]}}}, scores);
  EXPECT_NEAR(scores.kl.at(0), 0.0, 1e-12);
  EXPECT_TRUE(scores.same_top.at(0));
}

ServedToken surely(std::int32_t token) { return {token, 0.0, {{token, 0.0}}}; }

// Two references: the server knows the first, and the second up to its last token.
TEST(ServedScores, AnswersAreReadFromThePrefillAndFromWhatIsWritten) {
  const TaskPrompt prompt{{9, 8, 1, 2, 7, 3, 4}, {{2, 4}, {5, 7}}, 0};
  std::vector<std::int64_t> asked;
  const AskServer ask = [&](const ServedRequest& request) {
    asked.push_back(std::ssize(request.prompt));
    EXPECT_EQ(request.score_prompt, request.generate == 0);
    ServedAnswer answer;
    const std::vector<std::int32_t> known = {9, 8, 1, 2, 7, 3, 5};
    if (request.score_prompt) {
      for (std::size_t t = 1; t < request.prompt.size(); ++t) answer.prompt.push_back(surely(known[t]));
    }
    for (std::int64_t t = 0; t < request.generate; ++t) {
      answer.generated.push_back(surely(known[request.prompt.size() + static_cast<std::size_t>(t)]));
    }
    return answer;
  };
  EXPECT_EQ(served_answers(prompt, false, ask), (std::vector<bool>{true, false}));
  EXPECT_EQ(served_answers(prompt, true, ask), (std::vector<bool>{true, false}));
  EXPECT_EQ(asked, (std::vector<std::int64_t>{7, 2, 5}));
}

}  // namespace
}  // namespace oscar
