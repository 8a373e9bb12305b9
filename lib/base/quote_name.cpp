#include "base/quote_name.h"

#include <cstddef>

namespace oscar {

std::string quote_name(std::string_view name) {
  constexpr std::size_t kShown = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : name.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return text + (name.size() > kShown ? "...'" : "'");
}

}  // namespace oscar
