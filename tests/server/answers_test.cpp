#include "server/answers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/errors.h"

namespace oscar {
namespace {

const std::vector<std::int32_t> kPrompt = {5, 3, 7};

double logprob_at(int rank) { return std::log(0.5) * (rank + 1); }

// Tokens 0 .. 19 in this order; the token itself is one of them.
Json vllm_place() {
  Json place = Json::object();
  for (int t = 0; t < kServedTop; ++t) place[std::to_string(t)] = {{"logprob", logprob_at(t)}, {"rank", t + 1}};
  return place;
}

Json vllm_answer() {
  Json tops = Json::object();
  for (int t = 0; t < kServedTop; ++t) tops["token_id:" + std::to_string(t)] = logprob_at(t);
  const Json logprobs = {{"tokens", Json::array({"token_id:0", "token_id:40"})},
                         {"token_logprobs", Json::array({logprob_at(0), -9999.0})},
                         {"top_logprobs", Json::array({tops, tops})}};
  const Json places = Json::array({nullptr, vllm_place(), vllm_place()});
  return {{"choices", Json::array({Json{{"prompt_logprobs", places}, {"logprobs", logprobs}}})}};
}

Json sglang_answer() {
  Json top = Json::array();
  for (int t = 0; t < kServedTop; ++t) top.push_back(Json::array({logprob_at(t), t, nullptr}));
  const auto pair = [](const Json& logprob, int token) { return Json::array({logprob, token, nullptr}); };
  return {{"meta_info",
           {{"input_token_logprobs", Json::array({pair(nullptr, 5), pair(logprob_at(3), 3), pair(logprob_at(7), 7)})},
            {"input_top_logprobs", Json::array({nullptr, top, top})},
            {"output_token_logprobs", Json::array({pair(logprob_at(0), 0), pair(nullptr, 40)})},
            {"output_top_logprobs", Json::array({top, top})}}}};
}

using Reader = ServedAnswer (*)(const Json&, const ServedRequest&, const std::string&);

std::string refusal(Reader read, const Json& answer) {
  try {
    read(answer, {kPrompt, 2}, "http://host:1/x");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ServedAnswers, BothEnginesSayTheSame) {
  for (const ServedAnswer& answer :
       {read_vllm_answer(vllm_answer(), {kPrompt, 2}, "x"), read_sglang_answer(sglang_answer(), {kPrompt, 2}, "x")}) {
    ASSERT_EQ(answer.prompt.size(), 2U);
    EXPECT_EQ(answer.prompt[0].token, 3);
    EXPECT_DOUBLE_EQ(answer.prompt[0].logprob, logprob_at(3));
    EXPECT_EQ(answer.prompt[1].top.size(), 20U);
    ASSERT_EQ(answer.generated.size(), 2U);
    EXPECT_EQ(answer.generated[0].top.front().first, 0);
    // The token is none of the most probable ones, and has no probability.
    EXPECT_EQ(answer.generated[1].token, 40);
    EXPECT_EQ(answer.generated[1].top.size(), 21U);
    EXPECT_DOUBLE_EQ(answer.generated[1].logprob, -9999.0);
  }
}

TEST(ServedAnswers, APromptThatIsNotScoredNeedsNoLogprobs) {
  Json vllm = vllm_answer(), sglang = sglang_answer();
  vllm["choices"][0].erase("prompt_logprobs");
  sglang["meta_info"].erase("input_top_logprobs");
  EXPECT_EQ(read_vllm_answer(vllm, {kPrompt, 2, false}, "x").generated.size(), 2U);
  EXPECT_EQ(read_sglang_answer(sglang, {kPrompt, 2, false}, "x").generated.size(), 2U);
  EXPECT_FALSE(vllm_request("m", {kPrompt, 2, false}).contains("prompt_logprobs"));
  EXPECT_EQ(vllm_request("m", {kPrompt, 0})["max_tokens"], 1);  // none is no request to either engine
  EXPECT_EQ(sglang_request({kPrompt, 2, false})["logprob_start_len"], 2);
}

struct Damage {
  const char* name;
  std::function<void(Json&)> apply;
  const char* says;
};

TEST(ServedAnswers, DamageOfVllmIsRefused) {
  const auto choice = [](Json& a) -> Json& { return a["choices"][0]; };
  const auto place = [&](Json& a) -> Json& { return choice(a)["prompt_logprobs"][1]; };
  const Damage all[] = {
      {"no choices", [](Json& a) { a["choices"] = Json::array(); }, "no choices"},
      {"an error",
       [](Json& a) {
         a = {{"error", "x"}};
       },
       "choices"},
      {"none of the prompt", [&](Json& a) { choice(a).erase("prompt_logprobs"); }, "no prompt_logprobs"},
      {"a shorter prompt", [&](Json& a) { choice(a)["prompt_logprobs"].erase(2); }, "2 prompt_logprobs, expected 3"},
      {"no object", [&](Json& a) { place(a) = 3; }, "no log-probabilities at a place"},
      {"another token",
       [&](Json& a) {
         place(a).erase("3"), place(a)["33"] = {{"logprob", -30}};
       },
       "token 3"},
      {"text for a token",
       [&](Json& a) {
         place(a)["the"] = {{"logprob", -30}};
       },
       "not its id"},
      {"a negative token",
       [&](Json& a) {
         place(a)["-3"] = {{"logprob", -30}};
       },
       "not its id"},
      {"one twice",
       [&](Json& a) {
         place(a)["07"] = {{"logprob", -30}};
       },
       "token 7 twice"},
      {"fewer", [&](Json& a) { place(a).erase("12"); }, "19 log-probabilities at a place"},
      {"more",
       [&](Json& a) {
         for (int t = 20; t < 25; ++t) place(a)[std::to_string(t)] = {{"logprob", -30}};
       },
       "25 log-probabilities"},
      {"raw logits", [&](Json& a) { place(a)["4"]["logprob"] = 3.5; }, "a log-probability is 3.5"},
      {"NaN", [&](Json& a) { place(a)["4"]["logprob"] = std::nan(""); }, "a log-probability is"},
      {"a word", [&](Json& a) { place(a)["4"]["logprob"] = "-1"; }, "a log-probability is"},
      {"a sum above one", [&](Json& a) { place(a)["4"]["logprob"] = -0.01; }, "whose sum is 1.9"},
      {"fewer generated", [&](Json& a) { choice(a)["logprobs"]["tokens"].erase(1); }, "1 generated tokens, expected 2"},
      {"no tops", [&](Json& a) { choice(a)["logprobs"]["top_logprobs"][0] = nullptr; }, "no log-probabilities"},
  };
  for (const Damage& damage : all) {
    Json answer = vllm_answer();
    damage.apply(answer);
    const std::string said = refusal(read_vllm_answer, answer);
    EXPECT_NE(said.find(damage.says), std::string::npos) << damage.name << ": " << said;
  }
}

TEST(ServedAnswers, DamageOfSglangIsRefused) {
  const auto meta = [](Json& a) -> Json& { return a["meta_info"]; };
  const Damage all[] = {
      {"no facts", [](Json& a) { a.erase("meta_info"); }, "meta_info"},
      {"a shorter prompt", [&](Json& a) { meta(a)["input_token_logprobs"].erase(0); }, "expected 3"},
      {"fewer tops", [&](Json& a) { meta(a)["input_top_logprobs"].erase(0); }, "expected 3"},
      {"another token", [&](Json& a) { meta(a)["input_token_logprobs"][1][1] = 4; }, "other tokens"},
      {"no pair", [&](Json& a) { meta(a)["input_token_logprobs"][1] = 4; }, "not a pair"},
      {"no tops", [&](Json& a) { meta(a)["input_top_logprobs"][1] = nullptr; }, "no most probable tokens"},
      {"half a token", [&](Json& a) { meta(a)["output_token_logprobs"][0][1] = 0.5; }, "a token is 0.5"},
      {"a huge token", [&](Json& a) { meta(a)["output_token_logprobs"][0][1] = std::int64_t{1} << 40; }, "a token is"},
      {"fewer generated", [&](Json& a) { meta(a)["output_token_logprobs"].erase(0); }, "expected 2"},
  };
  for (const Damage& damage : all) {
    Json answer = sglang_answer();
    damage.apply(answer);
    const std::string said = refusal(read_sglang_answer, answer);
    EXPECT_NE(said.find(damage.says), std::string::npos) << damage.name << ": " << said;
  }
}

}  // namespace
}  // namespace oscar
