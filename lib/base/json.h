// Strict JSON (RFC 8259, parsed by nlohmann): no duplicate keys, limited depth, valid UTF-8. Objects keep insertion
// order when written, so equal inputs give byte-identical files.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/files.h"

namespace oscar {

using Json = nlohmann::ordered_json;

// `where` names the source in messages ("config.json"). InputError with the position of the first fault.
Json parse_json(std::string_view text, const std::string& where, int max_depth = 64);
Json read_json(const fs::path& path, std::uint64_t max_bytes = std::uint64_t{256} << 20);

// Whether a key is one of these, which have a space before and after each: " role id ".
bool is_one_of(std::string_view key, std::string_view keys);

// The member with that name. Null if there is none or `object` is not an object.
const Json& json_member(const Json& object, std::string_view key);

// Typed access. Errors name the file, the key, the value found and what was expected.
// The overloads with a fallback return it when the key is absent or null.
std::int64_t json_int(const Json& object, const char* key, const std::string& where);
std::int64_t json_int(const Json& object, const char* key, const std::string& where, std::int64_t fallback);
double json_number(const Json& object, const char* key, const std::string& where);
double json_number(const Json& object, const char* key, const std::string& where, double fallback);
bool json_bool(const Json& object, const char* key, const std::string& where, bool fallback);
std::string json_string(const Json& object, const char* key, const std::string& where);
std::string json_string(const Json& object, const char* key, const std::string& where, const std::string& fallback);
// json_int() in [low, high]. InputError otherwise: "<where>: '<key>' is 7, expected 1 to 5".
std::int64_t json_int_within(const Json& object, const char* key, const std::string& where, std::int64_t low,
                             std::int64_t high);
// Returns `value`, the number under `key`. InputError unless it is finite and above 0: "<where>: '<key>' is -1.000000,
// expected a positive number".
double require_positive(double value, const char* key, const std::string& where);
// The member, which must be an object (or array). InputError otherwise.
const Json& json_object(const Json& object, const char* key, const std::string& where);
const Json& json_array(const Json& object, const char* key, const std::string& where);

// Indents by two spaces and ends with a newline. Writes unsafe characters (foreign_text.h) as \uXXXX and passes invalid
// UTF-8 through escape_text().
std::string dump_json(const Json& value);

// A canonical text for each JSON value, independent of the program that wrote it. JSON hashes use this text.

// Sorts keys by their bytes and makes every number a double.
nlohmann::json sorted_json(const Json& value);

// sorted_json() without spaces, in UTF-8, with the shortest form of each double.
// python/oscar_kv/files/canonical_json.py writes the same text.
std::string canonical_json(const Json& value);

}  // namespace oscar
