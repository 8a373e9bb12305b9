// Log-probabilities in the answers of vLLM and SGLang. These servers are other people's programs, so everything is
// checked.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/json.h"

namespace oscar {

// What a server says about one place: the token there, and the most probable tokens, which include it, with natural
// logarithms of their probabilities.
struct ServedToken {
  std::int32_t token = 0;
  double logprob = 0;
  std::vector<std::pair<std::int32_t, double>> top;  // by descending probability
};

struct ServedAnswer {
  std::vector<ServedToken> prompt;     // [T - 1]: of the prompt's tokens from the second one on; empty: not scored
  std::vector<ServedToken> generated;  // of the tokens that the server wrote after the prompt
};

inline constexpr int kServedTop = 20;  // most probable tokens to ask for: the most that vLLM gives by default

// A request for `generate` tokens after a prompt, chosen greedily, and for the log-probabilities of the prompt's.
struct ServedRequest {
  std::span<const std::int32_t> prompt;
  std::int64_t generate = 0;
  bool score_prompt = true;  // false: the server may reuse its cached prefix
};

// Bodies of requests. Both engines generate at least one token.
Json vllm_request(const std::string& model, const ServedRequest& request);
Json sglang_request(const ServedRequest& request);

// InputError naming `where` for an answer that misses log-probabilities, whose probabilities are none, or which is
// about other tokens than the prompt's.
ServedAnswer read_vllm_answer(const Json& answer, const ServedRequest& request, const std::string& where);
ServedAnswer read_sglang_answer(const Json& answer, const ServedRequest& request, const std::string& where);

}  // namespace oscar
