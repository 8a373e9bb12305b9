// A running server of vLLM or SGLang.
#pragma once

#include <chrono>
#include <string>

#include "server/answers.h"
#include "server/http.h"

namespace oscar {

class Server {
 public:
  // Asks which engine answers, and which model it serves. patience: of one request. The key of OSCAR_SERVER_KEY is
  // sent, if it is set. UsageError for the URL; errors of http_request(); InputError if neither engine answers.
  Server(const std::string& url, std::chrono::seconds patience);

  // Errors of http_request() and of answers.h; EnvironmentError with the server's words if it refuses.
  ServedAnswer ask(const ServedRequest& request) const;

  std::string url() const { return url_.text(); }
  const std::string& runs() const { return runs_; }  // vllm | sglang
  const std::string& model() const { return model_; }

 private:
  Json call(const std::string& path, const Json& body, std::size_t most_bytes) const;

  ServerUrl url_;
  std::chrono::seconds patience_;
  std::string key_, runs_, model_;
};

}  // namespace oscar
