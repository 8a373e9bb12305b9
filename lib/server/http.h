// A blocking HTTP/1.1 client over plain sockets: one JSON body to an engine's server on this machine or in its network,
// one connection each. No TLS, no redirects, no cookies, no reuse: a server behind https is reached through its own
// port or a tunnel. It is not a library's: the packages carry every library that they link, and Debian's libcurl brings
// 25 others, its cpp-httplib (a shared library there, another in each release) OpenSSL's TLS and Brotli.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace oscar {

struct ServerUrl {
  std::string host, port, path;   // path: before that of a request, without a slash at its end
  std::string authority() const;  // "host:port"
  std::string text() const;       // "http://host:port/path"
};

// "http://localhost:8000", "http://[::1]:30000/base". UsageError for anything else, and for https and for names or
// passwords in the URL.
ServerUrl parse_server_url(const std::string& url);

struct HttpAnswer {
  int status = 0;
  std::string body, location;  // location: where a redirect leads
};

// A complete answer in bytes, its body by Content-Length, in chunks, or to the end. InputError naming `where` if it is
// damaged or cut.
HttpAnswer parse_http_answer(std::string_view bytes, const std::string& where);

struct HttpLimits {
  std::string key;  // sent as a bearer token; empty: none
  std::chrono::seconds patience{600};
  std::size_t most_bytes = std::size_t{16} << 20;  // of an answer
};

// GET without a body, otherwise POST of JSON. EnvironmentError if the server cannot be reached, or if its answer is not
// complete when the patience ends; InputError for a damaged or longer answer; InterruptedError on SIGINT.
HttpAnswer http_request(const ServerUrl& server, const std::string& path, const std::string& body,
                        const HttpLimits& limits);

}  // namespace oscar
