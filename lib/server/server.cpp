#include "server/server.h"

#include <algorithm>
#include <cstdlib>

#include "base/errors.h"
#include "base/foreign_text.h"

namespace oscar {
namespace {

constexpr std::size_t kMostWords = 300;                // of a server's refusal
constexpr std::size_t kFacts = std::size_t{16} << 20;  // bytes of an answer about the server
constexpr std::size_t kPlace = std::size_t{16} << 10;  // and for a token: 22 log-probabilities with their texts

}  // namespace

Server::Server(const std::string& url, std::chrono::seconds patience)
    : url_(parse_server_url(url)), patience_(patience) {
  if (const char* key = std::getenv("OSCAR_SERVER_KEY"); key != nullptr) key_ = key;
  if (!std::all_of(key_.begin(), key_.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; })) {
    throw UsageError("OSCAR_SERVER_KEY holds a character that no key has, such as a blank or the end of a line");
  }
  const std::string where = url_.text() + "/v1/models";
  const Json models = call("/v1/models", nullptr, kFacts);
  const Json& list = json_array(models, "data", where);
  if (list.empty()) throw InputError(where + ": serves no model; start the server with one");
  model_ = json_string(list[0], "id", where);
  runs_ = http_request(url_, "/model_info", "", {key_, patience_, kFacts}).status == 200 ? "sglang" : "vllm";
}

Json Server::call(const std::string& path, const Json& body, std::size_t most_bytes) const {
  const std::string where = url_.text() + path;
  const HttpAnswer answer = http_request(url_, path, body.is_null() ? "" : body.dump(), {key_, patience_, most_bytes});
  if (answer.status >= 300 && answer.status < 400) {
    throw EnvironmentError(where + ": redirects to " + quote_name(answer.location) +
                           ", which is not followed; pass the URL at which the server itself answers");
  }
  if (answer.status != 200) {
    throw EnvironmentError(where + ": answers with status " + std::to_string(answer.status) + ": " +
                           printable(answer.body, kMostWords) + "; its log says more");
  }
  return parse_json(answer.body, where);
}

ServedAnswer Server::ask(const ServedRequest& request) const {
  const std::size_t most_bytes = kFacts + kPlace * (request.prompt.size() + static_cast<std::size_t>(request.generate));
  if (runs_ == "sglang") {
    return read_sglang_answer(call("/generate", sglang_request(request), most_bytes), request,
                              url_.text() + "/generate");
  }
  return read_vllm_answer(call("/v1/completions", vllm_request(model_, request), most_bytes), request,
                          url_.text() + "/v1/completions");
}

}  // namespace oscar
