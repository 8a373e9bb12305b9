// SHA-256 (FIPS 180-4, from OpenSSL), for provenance and fingerprints.
#pragma once

#include <cstddef>
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

}  // namespace oscar
