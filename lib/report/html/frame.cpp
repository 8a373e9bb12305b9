#include <array>

#include "base/hash.h"
#include "report/html/parts.h"

namespace oscar::html {
namespace {

int hex_value(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

// Base64 (RFC 4648) of the bytes given as hexadecimal digits.
std::string base64_of_hex(const std::string& hex) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < hex.size(); i += 6) {  // three bytes, four digits
    unsigned bits = 0;
    const std::size_t digits = std::min<std::size_t>(6, hex.size() - i);
    for (std::size_t k = 0; k < 6; ++k)
      bits = bits * 16 + (k < digits ? static_cast<unsigned>(hex_value(hex[i + k])) : 0);
    for (std::size_t k = 0; k < 4; ++k) {
      text += k <= digits / 2 ? kDigits[bits >> (18 - 6 * k) & 63U] : '=';
    }
  }
  return text;
}

}  // namespace

std::string folded(const std::string& summary, const std::string& content) {
  return "<details><summary>" + summary + "</summary>\n" + content + "</details>\n";
}

std::string framed(const std::string& content, const std::string& label) {
  return "<div class=\"frame\"><p class=\"cue\" aria-hidden=\"true\">&#x2194; scroll sideways: columns are hidden</p>"
         "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" +
         label + "\">" + content + "</div></div>\n";
}

std::string content_security_policy() {
  return "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64_of_hex(sha256_hex(page_js)) +
         "'; base-uri 'none'; form-action 'none'";
}

}  // namespace oscar::html
