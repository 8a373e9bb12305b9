#include "base/hash.h"

#include <openssl/evp.h>

#include "base/errors.h"

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

}  // namespace oscar
