// What a server sends to oscar-verify --served: the HTTP answer, its JSON, and the log-probabilities in it.
#include <cmath>

#include "fuzz/fuzz_target.h"
#include "server/answers.h"
#include "server/http.h"

namespace oscar::fuzz {
namespace {

const std::vector<std::int32_t> kPrompt = {5, 3};

std::string chunked(const std::string& body) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx", body.size());
  return "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + std::string(size) + "\r\n" + body + "\r\n0\r\n\r\n";
}

}  // namespace

std::vector<std::string> seeds() {
  Json place = Json::object(), named = Json::object(), top = Json::array();
  for (int t = 0; t < kServedTop; ++t) {
    place[std::to_string(t)] = {{"logprob", -4 - t}};
    named["token_id:" + std::to_string(t)] = -4 - t;
    top.push_back(Json::array({-4 - t, t, nullptr}));
  }
  const Json vllm = {{"choices", Json::array({Json{{"prompt_logprobs", Json::array({nullptr, place})},
                                                   {"logprobs",
                                                    {{"tokens", Json::array({"token_id:3"})},
                                                     {"token_logprobs", Json::array({-7})},
                                                     {"top_logprobs", Json::array({named})}}}}})}};
  const Json own = Json::array({-7, 3, nullptr});
  const Json sglang = {{"meta_info",
                        {{"input_token_logprobs", Json::array({Json::array({nullptr, 5, nullptr}), own})},
                         {"input_top_logprobs", Json::array({nullptr, top})},
                         {"output_token_logprobs", Json::array({own})},
                         {"output_top_logprobs", Json::array({top})}}}};
  const std::string body = vllm.dump();
  return {chunked(body), chunked(sglang.dump()),
          "HTTP/1.1 200 OK\r\nlocation: /y\r\ncontent-length: " + std::to_string(body.size()) + "\r\n\r\n" + body};
}

void read_input(std::string_view bytes) {
  const HttpAnswer answer = parse_http_answer(bytes, "http://host:1");
  require(answer.body.size() <= bytes.size(), "a body is part of the answer");
  const Json json = parse_json(answer.body, "http://host:1");
  const ServedRequest request{kPrompt, 1};
  const ServedAnswer read = json_member(json, "meta_info").is_null()
                                ? read_vllm_answer(json, request, "http://host:1")
                                : read_sglang_answer(json, request, "http://host:1");
  require(read.prompt.size() == 1 && read.generated.size() == 1, "as many tokens as were asked for");
  for (const ServedToken& token : {read.prompt[0], read.generated[0]}) {
    require(std::isfinite(token.logprob) && token.logprob <= 0 && token.top.size() >= kServedTop, "log-probabilities");
  }
}

}  // namespace oscar::fuzz
