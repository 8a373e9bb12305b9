#include "base/utf8.h"

namespace oscar {

Utf8Step utf8_step(std::string_view text, std::size_t at) {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte_at(at);
  if (lead < 0x80) return {lead, 1, true};
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;  // allowed range of the second byte
  char32_t value = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    value = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    value = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    value = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  if (length == 0) return {0, 1, false};
  for (std::size_t k = 1; k < length; ++k) {
    if (at + k >= text.size()) return {0, k, false};
    const unsigned char c = byte_at(at + k);
    if (c < low || c > high) return {0, k, false};
    value = (value << 6) | (c & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {value, length, true};
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid) return false;
    at += step.bytes;
  }
  return true;
}

}  // namespace oscar
