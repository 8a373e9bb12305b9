#include "server/answers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "base/errors.h"
#include "base/foreign_text.h"

namespace oscar {
namespace {

using Logprobs = std::vector<std::pair<std::int32_t, double>>;  // of token ids

constexpr double kLeastLogprob = -9999.0;  // vLLM's stand-in for no probability; of SGLang null
constexpr double kMostLogprob = 1e-3;      // rounding may bring a probability above one
constexpr double kMostSum = 1.01;          // of the probabilities at one place

[[noreturn]] void refuse(const std::string& where, const std::string& found) {
  throw InputError(where + ": " + found + "; evaluate a server of vLLM or SGLang that serves this model");
}

double logprob_of(const Json& value, const std::string& where) {
  if (value.is_null()) return kLeastLogprob;
  const double logprob = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(logprob <= kMostLogprob)) refuse(where, "a log-probability is " + printable(value.dump(-1, ' ', true)));
  return std::clamp(logprob, kLeastLogprob, 0.0);
}

std::int32_t token_of(std::string_view text, const std::string& where) {
  constexpr std::string_view kMark = "token_id:";
  const std::string_view digits = text.starts_with(kMark) ? text.substr(kMark.size()) : text;
  std::int32_t id = -1;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (end.ec != std::errc() || end.ptr != digits.data() + digits.size() || id < 0) {
    refuse(where, "names a token " + quote_name(std::string(text)) + " and not its id");
  }
  return id;
}

std::int32_t token_of(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    refuse(where, "a token is " + printable(value.dump(-1, ' ', true)));
  }
  return value.get<std::int32_t>();
}

// Sorted, each token once, the token itself included.
ServedToken place(std::int32_t token, std::optional<double> logprob, Logprobs top, const std::string& where) {
  const auto itself = std::find_if(top.begin(), top.end(), [&](const auto& t) { return t.first == token; });
  if (itself != top.end()) {
    if (!logprob) logprob = itself->second;
  } else if (logprob) {
    top.emplace_back(token, *logprob);
  } else {
    refuse(where, "has no log-probability of token " + std::to_string(token) + " of the prompt");
  }
  if (top.size() < kServedTop || top.size() > kServedTop + 2) {
    refuse(where, "has " + std::to_string(top.size()) + " log-probabilities at a place, expected " +
                      std::to_string(kServedTop) + " and the token's own");
  }
  std::stable_sort(top.begin(), top.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  double sum = 0;
  for (std::size_t i = 0; i < top.size(); ++i) {
    sum += std::exp(top[i].second);
    for (std::size_t j = 0; j < i; ++j) {
      if (top[i].first == top[j].first) refuse(where, "names token " + std::to_string(top[i].first) + " twice");
    }
  }
  if (sum > kMostSum) {
    refuse(where, "has probabilities whose sum is " + std::to_string(sum) + " at a place (vLLM: --logprobs-mode)");
  }
  return {token, *logprob, std::move(top)};
}

void require_count(std::size_t found, std::size_t expected, const char* what, const std::string& where) {
  if (found == expected) return;
  refuse(where, "has " + std::to_string(found) + " " + what + ", expected " + std::to_string(expected));
}

// {"12": {"logprob": -0.1, ...}, ...} with that member, {"token_id:12": -0.1, ...} without one. entry: an object.
Logprobs vllm_top(const Json& entry, const char* member, const std::string& where) {
  Logprobs top;
  for (const auto& [name, value] : entry.items()) {
    top.emplace_back(token_of(std::string_view(name), where),
                     logprob_of(member != nullptr ? json_member(value, member) : value, where));
  }
  return top;
}

// [logprob, token, text]
std::pair<std::int32_t, double> sglang_pair(const Json& pair, const std::string& where) {
  if (!pair.is_array() || pair.size() < 2) refuse(where, "a log-probability is not a pair with its token");
  return {token_of(pair[1], where), logprob_of(pair[0], where)};
}

Logprobs sglang_top(const Json& entry, const std::string& where) {
  Logprobs top;
  if (!entry.is_array()) refuse(where, "has no most probable tokens at a place");
  for (const Json& pair : entry) top.push_back(sglang_pair(pair, where));
  return top;
}

}  // namespace

Json vllm_request(const std::string& model, const ServedRequest& request) {
  Json body = {{"model", model},
               {"prompt", std::vector<std::int32_t>(request.prompt.begin(), request.prompt.end())},
               {"max_tokens", std::max<std::int64_t>(request.generate, 1)},
               {"temperature", 0},
               {"ignore_eos", true},
               {"logprobs", kServedTop},
               {"return_tokens_as_token_ids", true}};
  if (request.score_prompt) body["prompt_logprobs"] = kServedTop;
  return body;
}

Json sglang_request(const ServedRequest& request) {
  // A start at the last token asks for no log-probabilities of those before it.
  const std::int64_t start = request.score_prompt ? 0 : std::ssize(request.prompt) - 1;
  return {{"input_ids", std::vector<std::int32_t>(request.prompt.begin(), request.prompt.end())},
          {"sampling_params",
           {{"max_new_tokens", std::max<std::int64_t>(request.generate, 1)}, {"temperature", 0}, {"ignore_eos", true}}},
          {"return_logprob", true},
          {"logprob_start_len", start},
          {"top_logprobs_num", kServedTop}};
}

ServedAnswer read_vllm_answer(const Json& answer, const ServedRequest& request, const std::string& where) {
  const Json& choices = json_array(answer, "choices", where);
  if (choices.empty()) refuse(where, "has no choices");
  ServedAnswer out;
  if (request.score_prompt) {
    const Json& places = json_member(choices[0], "prompt_logprobs");
    if (!places.is_array()) refuse(where, "has no prompt_logprobs");
    require_count(places.size(), request.prompt.size(), "prompt_logprobs", where);
    for (std::size_t t = 1; t < request.prompt.size(); ++t) {
      if (!places[t].is_object()) refuse(where, "has no log-probabilities at a place of the prompt");
      out.prompt.push_back(place(request.prompt[t], std::nullopt, vllm_top(places[t], "logprob", where), where));
    }
  }
  if (request.generate == 0) return out;
  const Json& written = json_object(choices[0], "logprobs", where);
  const Json &tokens = json_array(written, "tokens", where), &logprobs = json_array(written, "token_logprobs", where),
             &tops = json_array(written, "top_logprobs", where);
  for (const Json* list : {&tokens, &logprobs, &tops}) {
    require_count(list->size(), static_cast<std::size_t>(request.generate), "generated tokens", where);
  }
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    if (!tokens[t].is_string() || !tops[t].is_object()) refuse(where, "a generated token has no log-probabilities");
    const auto token = token_of(std::string_view(tokens[t].get_ref<const std::string&>()), where);
    out.generated.push_back(place(token, logprob_of(logprobs[t], where), vllm_top(tops[t], nullptr, where), where));
  }
  return out;
}

ServedAnswer read_sglang_answer(const Json& answer, const ServedRequest& request, const std::string& where) {
  const Json& meta = json_object(answer, "meta_info", where);
  ServedAnswer out;
  const auto read = [&](const char* tokens_key, const char* tops_key, std::size_t count, std::size_t from,
                        std::vector<ServedToken>& into) {
    const Json &tokens = json_array(meta, tokens_key, where), &tops = json_array(meta, tops_key, where);
    require_count(tokens.size(), count, tokens_key, where);
    require_count(tops.size(), count, tops_key, where);
    for (std::size_t t = from; t < count; ++t) {
      const auto [token, logprob] = sglang_pair(tokens[t], where);
      into.push_back(place(token, logprob, sglang_top(tops[t], where), where));
    }
  };
  if (request.score_prompt) {
    read("input_token_logprobs", "input_top_logprobs", request.prompt.size(), 1, out.prompt);
    for (std::size_t t = 1; t < request.prompt.size(); ++t) {
      if (out.prompt[t - 1].token != request.prompt[t]) refuse(where, "is about other tokens than the prompt's");
    }
  }
  if (request.generate == 0) return out;
  read("output_token_logprobs", "output_top_logprobs", static_cast<std::size_t>(request.generate), 0, out.generated);
  return out;
}

}  // namespace oscar
