#include "base/hash.h"

#include <openssl/evp.h>

#include <cstring>

#include "base/errors.h"
#include "base/formatted.h"
#include "base/random.h"

namespace oscar {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1) {
    throw EnvironmentError("OpenSSL offers no SHA-256; check the OpenSSL installation");
  }
}
Sha256::~Sha256() = default;

void Sha256::update(const void* data, std::size_t bytes) { EVP_DigestUpdate(state_->context, data, bytes); }

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_DigestFinal_ex(state_->context, digest, &length);
  static const char* const kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < length; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::string sha256_hex(std::string_view content) {
  Sha256 hash;
  hash.update(content);
  return hash.hex();
}

std::string sha256_file(const fs::path& path) {
  const MappedFile file(path);
  Sha256 hash;
  hash.update(file.bytes().data(), file.bytes().size());
  return hash.hex();
}

namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uint64_t placed(std::uint64_t word, std::uint64_t place) { return mix64(word ^ (place * 0xd1b54a32d192ed03ULL)); }

}  // namespace

std::uint64_t words_checksum(const void* data, std::size_t bytes, std::uint64_t first_word) {
  const char* from = static_cast<const char*>(data);
  const std::size_t whole = bytes / kWord;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < whole; ++i) {
    std::uint64_t word;
    std::memcpy(&word, from + i * kWord, kWord);
    sum += placed(word, first_word + i);
  }
  if (bytes % kWord != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + whole * kWord, bytes % kWord);
    sum += placed(word, first_word + whole);
  }
  return sum;
}

void Checksum::add(const void* data, std::size_t bytes) {
  const std::uint64_t length = bytes;
  sum_ += words_checksum(&length, sizeof length, words_++);
  sum_ += words_checksum(data, bytes, words_);
  words_ += (bytes + kWord - 1) / kWord;
}

std::string Checksum::hex() const { return checksum_hex(sum_); }

std::string checksum_hex(std::uint64_t sum) { return formatted("%016llx", static_cast<unsigned long long>(sum)); }

}  // namespace oscar
