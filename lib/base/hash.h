// SHA-256 (FIPS 180-4, from OpenSSL), for provenance and fingerprints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/files.h"

namespace oscar {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::string hex();  // 64 lowercase hexadecimal digits; finishes the hash

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::string_view content);
std::string sha256_file(const fs::path& path);

// A checksum that shows damage of a file, such as a changed bit or lost blocks. It is a sum of mixed words, each with
// its place, so parts may be added in any order. It takes a fraction of the time of SHA-256, and proves nothing about
// who wrote the file.

// The part of a checksum that `bytes` of data add, whose first word of 8 bytes has the place `first_word`. Zeros fill
// the last word.
std::uint64_t words_checksum(const void* data, std::size_t bytes, std::uint64_t first_word);

// The checksum of consecutive pieces. The length of a piece counts, too.
class Checksum {
 public:
  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  std::string hex() const;  // 16 lowercase hexadecimal digits

 private:
  std::uint64_t sum_ = 0, words_ = 0;
};

std::string checksum_hex(std::uint64_t sum);

}  // namespace oscar
