#include "server/http.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace oscar {
namespace {

std::string refusal(const std::string& bytes) {
  try {
    parse_http_answer(bytes, "http://host:1/x");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Http, ReadsABodyByItsLengthInChunksAndToTheEnd) {
  EXPECT_EQ(parse_http_answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}rest", "x").body, "{}");
  EXPECT_EQ(parse_http_answer("HTTP/1.0 200 OK\r\n\r\n{\"a\":1}", "x").body, "{\"a\":1}");
  const HttpAnswer chunked = parse_http_answer(
      "HTTP/1.1 404 No\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nabc\r\n0A;name=1\r\n0123456789\r\n0\r\n\r\n", "x");
  EXPECT_EQ(chunked.body, "abc0123456789");
  EXPECT_EQ(chunked.status, 404);
}

TEST(Http, RefusesDamagedAnswers) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  for (const std::string& bytes : {std::string(), std::string("SSH-2.0-OpenSSH"), std::string("HTTP/1.1 200 OK\r\n"),
                                   std::string("HTTP/1.1\r\n\r\n")}) {
    EXPECT_NE(refusal(bytes).find("does not answer in HTTP/1.1"), std::string::npos) << bytes;
  }
  EXPECT_NE(refusal("HTTP/1.1 xyz OK\r\n\r\n").find("without a status"), std::string::npos);
  for (const char* length : {"3", "-1", "99999999999999999999", "0x2", "two"}) {
    EXPECT_NE(refusal(head + "Content-Length: " + length + "\r\n\r\n{}").find("before its length"), std::string::npos)
        << length;
  }
  for (const char* body : {"", "5\r\nabc", "ffffffffffffffff\r\nabc\r\n", "-1\r\n", "3\r\nabc\r\n", "zz\r\n"}) {
    EXPECT_NE(refusal(head + "Transfer-Encoding: chunked\r\n\r\n" + body).find("within a chunk"), std::string::npos)
        << body;
  }
}

TEST(Http, ReadsUrlsAsClientsWriteThem) {
  EXPECT_EQ(parse_server_url("http://localhost:8000/v1/").text(), "http://localhost:8000");
  EXPECT_EQ(parse_server_url("http://[::1]:30000/base").text(), "http://[::1]:30000/base");
  EXPECT_EQ(parse_server_url("http://host").text(), "http://host:80");
  for (const char* url :
       {"", "host:8000", "https://host", "ftp://host", "http://", "http://host:0", "http://host:99999",
        "http://host:8x", "http://me:secret@host", "http://ho st", "http://host\r\nX: y"}) {
    EXPECT_THROW(parse_server_url(url), UsageError) << url;
  }
}

}  // namespace
}  // namespace oscar
