#include "text/tokenizer/charsmap.h"

#include "base/budget.h"
#include "base/errors.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

std::string decode_base64(std::string_view text, const std::string& where) {
  const auto fail = [&] { throw InputError(where + ": 'precompiled_charsmap' is not valid base64"); };
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  if (text.size() % 4 == 1) fail();
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) fail();
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    // Each character adds six bits, so three of four characters complete a byte.
    if (i % 4 != 0) bytes.push_back(static_cast<char>(bits >> (6 - 2 * (i % 4))));
  }
  return bytes;
}

std::uint32_t u32_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return value;
}

bool is_inside_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

std::size_t offset_of(std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & (1U << 9)) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view base64, const std::string& where) {
  const std::string bytes = decode_base64(base64, where);
  const std::size_t size = bytes.size() < 4 ? 0 : u32_at(bytes, 0);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - 4) {
    throw InputError(where + ": 'precompiled_charsmap' has " + std::to_string(bytes.size()) + " bytes and a trie of " +
                     std::to_string(size) + ", expected a multiple of four that fits into them");
  }
  for (std::size_t at = 0; at < size; at += 4) trie_.push_back(u32_at(bytes, 4 + at));
  replacements_ = bytes.substr(4 + size);
  if (find_invalid_utf8(replacements_) != std::string_view::npos) {
    throw InputError(where + ": the replacements in 'precompiled_charsmap' are not valid UTF-8");
  }
}

std::optional<std::string_view> Charsmap::replacement(std::string_view text) const {
  std::size_t node = offset_of(trie_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= trie_.size()) return std::nullopt;
    const std::uint32_t unit = trie_[node];
    if ((unit & 0x800000FFU) != byte) return std::nullopt;
    node ^= offset_of(unit);
    if ((unit & 0x100U) == 0) continue;
    if (node >= trie_.size()) return std::nullopt;
    const std::size_t begin = trie_[node] & 0x7FFFFFFFU;
    // A damaged value could start inside a character.
    if (begin > replacements_.size() || (begin < replacements_.size() && is_inside_character(replacements_[begin]))) {
      return std::nullopt;
    }
    return std::string_view(replacements_).substr(begin, replacements_.find('\0', begin) - begin);
  }
  return std::nullopt;
}

bool Charsmap::apply(std::string& text) const {
  constexpr std::size_t kLongestCluster = 5;  // bytes
  std::string out;
  out.reserve(text.size());
  const auto put = [&](std::string_view piece) {
    out += piece;
    Budget::spend(20 + piece.size());
    Budget::hold(piece.size());
  };
  GraphemeBreaks breaks;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = breaks.next(text, at);
    const std::string_view cluster = std::string_view(text).substr(at, end - at);
    const auto whole = cluster.size() <= kLongestCluster ? replacement(cluster) : std::nullopt;
    if (whole) put(*whole);
    for (std::size_t inside = 0; !whole && inside < cluster.size();) {
      const std::string_view character = cluster.substr(inside, decode_code_point(cluster, inside).bytes);
      put(replacement(character).value_or(character));
      inside += character.size();
    }
    at = end;
  }
  text = std::move(out);
  return false;
}

}  // namespace oscar
