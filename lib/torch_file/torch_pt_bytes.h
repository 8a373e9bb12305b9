// Reads the bytes of a pickle from start to end.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/errors.h"
#include "base/utf8.h"

namespace oscar::pt {

class PickleBytes {
 public:
  // where: the file name for messages; it must outlive this object.
  PickleBytes(std::span<const std::byte> in, const std::string& where) : in_(in), where_(where) {}

  const std::string& where() const { return where_; }
  // fail(): a pickle that no writer produces. refuse(): a pickle that contains more than data. Both throw InputError.
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(where_ + ": the pickle is damaged: " + what);
  }
  [[noreturn]] void refuse(const std::string& what) const { throw InputError(where_ + ": " + what); }

  // The next n bytes; fails if fewer are left. The functions below work the same way.
  std::span<const std::byte> take(std::uint64_t n) {
    if (n > in_.size() - at_) fail("it ends early");
    const auto part = in_.subspan(at_, n);
    at_ += n;
    return part;
  }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text(std::uint64_t n) {
    const auto part = take(n);
    std::string s(reinterpret_cast<const char*>(part.data()), part.size());
    if (!is_utf8(s)) fail("text is not UTF-8");
    return s;
  }
  // Text up to the next line break, which is skipped.
  std::string line() {
    const std::size_t start = at_;
    while (at_ < in_.size() && in_[at_] != std::byte{'\n'}) ++at_;
    if (at_ == in_.size()) fail("it ends early");
    return {reinterpret_cast<const char*>(in_.data()) + start, at_++ - start};
  }
  // Little-endian two's complement, preceded by its length.
  std::int64_t long_integer() {
    const auto size = number<std::uint8_t>();
    if (size > 8) refuse("its pickle holds an integer beyond 64 bits");
    const auto bytes = take(size);
    std::uint64_t value = size > 0 && (bytes[size - 1u] & std::byte{0x80}) != std::byte{0} ? ~std::uint64_t{0} : 0;
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<std::uint64_t>(bytes[i]);
    return static_cast<std::int64_t>(value);
  }
  double big_endian_double() {
    std::uint64_t bits = 0;
    for (const std::byte b : take(8)) bits = bits << 8 | static_cast<std::uint64_t>(b);
    return std::bit_cast<double>(bits);
  }

 private:
  std::span<const std::byte> in_;
  const std::string& where_;
  std::size_t at_ = 0;
};

}  // namespace oscar::pt
