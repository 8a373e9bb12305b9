// Decompresses complete gzip files (RFC 1952).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

// The content of all members in order. InputError, starting with `where`, for a damaged or truncated file, for bytes
// after the last member, and for content larger than max_bytes.
std::string gunzip(std::string_view bytes, const std::string& where, std::uint64_t max_bytes);

// Whether the bytes start like a gzip file.
bool is_gzip(std::string_view bytes);

}  // namespace oscar
