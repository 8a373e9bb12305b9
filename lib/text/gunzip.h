// Files compressed by gzip (RFC 1952), read whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

// The content of all members in order. InputError, which begins with `where`, for a damaged or truncated file, for
// bytes behind the last member, and for a content of more than max_bytes.
std::string gunzip(std::string_view bytes, const std::string& where, std::uint64_t max_bytes);

// Whether it begins as such a file.
bool is_gzip(std::string_view bytes);

}  // namespace oscar
