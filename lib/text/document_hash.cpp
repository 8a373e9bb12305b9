#include "text/document_hash.h"

#include "base/hash.h"

namespace oscar {

std::string document_hash(const std::vector<std::int32_t>& ids) {
  Sha256 hash;
  for (const std::int32_t id : ids) {
    const auto bits = static_cast<std::uint32_t>(id);
    const unsigned char bytes[4] = {static_cast<unsigned char>(bits), static_cast<unsigned char>(bits >> 8),
                                    static_cast<unsigned char>(bits >> 16), static_cast<unsigned char>(bits >> 24)};
    hash.update(bytes, sizeof bytes);
  }
  return hash.hex().substr(0, 16);
}

}  // namespace oscar
