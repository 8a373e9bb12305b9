// Compares the documents in two files by hash.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oscar {

// The first 16 hexadecimal digits of the SHA-256 of a document's token ids (little-endian, 32-bit).
std::string document_hash(const std::vector<std::int32_t>& ids);

}  // namespace oscar
