#include "server/http.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/interrupt.h"

namespace oscar {
namespace {

constexpr std::size_t kMostNumber = std::size_t{1} << 40;  // in a head or of a chunk
constexpr int kPollMilliseconds = 200;                     // between looks for SIGINT

using Deadline = std::chrono::steady_clock::time_point;

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void unreachable(const ServerUrl& server, const std::string& reason) {
  throw EnvironmentError(server.text() + ": " + reason +
                         "; start the server, or pass the URL under which this machine reaches it");
}

[[noreturn]] void late(const ServerUrl& server, int error) {
  if (error != ETIMEDOUT) unreachable(server, std::strerror(error));
  throw EnvironmentError(server.text() + ": the answer took too long; raise --served-timeout, or score fewer tokens");
}

// Waits until the socket is ready; returns its error, or 0.
int wait_for(const Socket& socket, short events, const ServerUrl& server, Deadline end) {
  for (;;) {
    if (interrupt_requested()) throw InterruptedError("interrupted while waiting for " + server.text());
    pollfd waiting{socket.get(), events, 0};
    const int ready = ::poll(&waiting, 1, kPollMilliseconds);
    if (ready > 0) break;
    if (ready < 0 && errno != EINTR) return errno;
    if (std::chrono::steady_clock::now() > end) return ETIMEDOUT;
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// A connected socket that does not block.
Socket connect_to(const ServerUrl& server, Deadline end) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &found); error != 0) {
    unreachable(server, ::gai_strerror(error));
  }
  int last = 0;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int descriptor = ::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (descriptor < 0) continue;
    Socket socket(descriptor);
    last = ::connect(descriptor, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (last == EINPROGRESS) last = wait_for(socket, POLLOUT, server, end);
    if (last != 0) continue;
    ::freeaddrinfo(found);
    return socket;
  }
  ::freeaddrinfo(found);
  unreachable(server, last == 0 ? "has no address" : std::strerror(last));
}

void send_all(const Socket& socket, std::string_view bytes, const ServerUrl& server, Deadline end) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const int error = wait_for(socket, POLLOUT, server, end); error != 0) late(server, error);
    } else if (errno != EINTR) {
      unreachable(server, std::strerror(errno));
    }
  }
}

// What the server sends until it closes the connection, as `Connection: close` asks it to.
std::string receive_all(const Socket& socket, const ServerUrl& server, Deadline end, std::size_t most_bytes) {
  std::string bytes;
  char block[1 << 16];
  for (;;) {
    const ssize_t got = ::recv(socket.get(), block, sizeof block, 0);
    if (got == 0) return bytes;
    if (got > 0) {
      bytes.append(block, static_cast<std::size_t>(got));
      if (bytes.size() > most_bytes) {
        throw InputError(server.text() + ": answers with more than " + std::to_string(most_bytes >> 20) +
                         " MiB; pass the URL of an engine's server");
      }
      if (std::chrono::steady_clock::now() > end) late(server, ETIMEDOUT);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const int error = wait_for(socket, POLLIN, server, end); error != 0) late(server, error);
    } else if (errno != EINTR) {
      unreachable(server, std::strerror(errno));
    }
  }
}

std::optional<std::size_t> number(std::string_view text, int base) {
  std::size_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || value > kMostNumber) return std::nullopt;
  return value;
}

// The value of a header, lower case; empty if there is none.
std::string header(std::string_view head, const std::string& name) {
  std::string lower(head);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::size_t found = lower.find("\r\n" + name + ":");
  if (found == std::string::npos) return {};
  std::size_t from = found + name.size() + 3;
  while (from < lower.size() && lower[from] == ' ') ++from;
  return lower.substr(from, std::min(lower.find("\r\n", from), lower.size()) - from);
}

std::string unchunked(std::string_view bytes, const std::string& where) {
  std::string body;
  for (;;) {
    const std::size_t line = bytes.find("\r\n");
    const auto size =
        line == std::string_view::npos ? std::nullopt : number(bytes.substr(0, std::min(line, bytes.find(';'))), 16);
    if (!size || *size > bytes.size() - line - 2)
      throw InputError(where + ": the answer ends within a chunk; ask again");
    if (*size == 0) return body;
    body += bytes.substr(line + 2, *size);
    bytes.remove_prefix(std::min(bytes.size(), line + 2 + *size + 2));
  }
}

}  // namespace

std::string ServerUrl::authority() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

std::string ServerUrl::text() const { return "http://" + authority() + path; }

ServerUrl parse_server_url(const std::string& url) {
  const auto refuse = [&](const std::string& why) -> ServerUrl {
    throw UsageError("--served " + quote_name(url) + " " + why);
  };
  if (url.starts_with("https://")) {
    return refuse(
        "needs TLS, which this client does not have; reach the server through its own port or a tunnel (ssh -L), " +
        std::string("with http://"));
  }
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return refuse("is no URL such as http://localhost:8000");
  std::string rest = url.substr(kScheme.size());
  ServerUrl server{"", "80", ""};
  if (const std::size_t slash = rest.find('/'); slash != std::string::npos) {
    server.path = rest.substr(slash);
    rest.resize(slash);
    while (server.path.ends_with('/')) server.path.pop_back();
    if (server.path.ends_with("/v1"))
      server.path.resize(server.path.size() - 3);  // as clients of OpenAI's API write it
  }
  if (rest.find('@') != std::string::npos) return refuse("holds a name; pass a key in OSCAR_SERVER_KEY");
  const std::size_t bracket = rest.rfind(']'), colon = rest.rfind(':');
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    server.port = rest.substr(colon + 1);
    rest.resize(colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  server.host = rest;
  const auto port = number(server.port, 10);
  const bool plain = std::all_of(url.begin(), url.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (server.host.empty() || !port || *port == 0 || *port > 65535 || !plain) {
    return refuse("is no URL such as http://localhost:8000");
  }
  return server;
}

HttpAnswer parse_http_answer(std::string_view bytes, const std::string& where) {
  const std::size_t end = bytes.find("\r\n\r\n");
  if (!bytes.starts_with("HTTP/1.") || end == std::string_view::npos || end < 12) {
    throw InputError(where + ": does not answer in HTTP/1.1; pass the URL of an engine's server");
  }
  const std::string_view head = bytes.substr(0, end + 2), body = bytes.substr(end + 4);
  const auto status = number(bytes.substr(9, 3), 10);
  if (!status || *status < 100)
    throw InputError(where + ": answers without a status; pass the URL of an engine's server");
  HttpAnswer answer{static_cast<int>(*status), {}, header(head, "location")};
  if (header(head, "transfer-encoding").find("chunked") != std::string::npos) {
    answer.body = unchunked(body, where);
    return answer;
  }
  const std::string length = header(head, "content-length");
  const auto size = length.empty() ? std::optional(body.size()) : number(length, 10);
  if (!size || *size > body.size()) throw InputError(where + ": the answer ends before its length; ask again");
  answer.body = body.substr(0, *size);
  return answer;
}

HttpAnswer http_request(const ServerUrl& server, const std::string& path, const std::string& body,
                        const HttpLimits& limits) {
  const Deadline end = std::chrono::steady_clock::now() + limits.patience;
  const Socket socket = connect_to(server, end);
  std::string request = (body.empty() ? "GET " : "POST ") + server.path + path +
                        " HTTP/1.1\r\nHost: " + server.authority() +
                        "\r\nConnection: close\r\nAccept: application/json\r\n";
  if (!limits.key.empty()) request += "Authorization: Bearer " + limits.key + "\r\n";
  if (!body.empty()) {
    request += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  send_all(socket, request + "\r\n" + body, server, end);
  return parse_http_answer(receive_all(socket, server, end, limits.most_bytes), server.text() + path);
}

}  // namespace oscar
