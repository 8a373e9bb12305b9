// JSON (RFC 8259) by nlohmann, read strictly: no duplicate keys, bounded depth, valid UTF-8. Objects keep the order of
// insertion when written, so equal inputs give byte-identical files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/files.h"

namespace oscar {

using Json = nlohmann::ordered_json;

// `where` names the source in messages ("config.json"). Throws InputError with the position of the first fault.
Json parse_json(std::string_view text, const std::string& where, int max_depth = 64);
Json read_json(const fs::path& path, std::uint64_t max_bytes = std::uint64_t{256} << 20);

// The member of that name; a null where there is none, or where `object` is no object.
const Json& json_member(const Json& object, std::string_view key);

// Typed access with errors that name the file, the key, what was found and what was expected.
// The overloads with a default return it when the key is absent or null.
std::int64_t json_int(const Json& object, const char* key, const std::string& where);
std::int64_t json_int(const Json& object, const char* key, const std::string& where, std::int64_t fallback);
double json_number(const Json& object, const char* key, const std::string& where);
double json_number(const Json& object, const char* key, const std::string& where, double fallback);
bool json_bool(const Json& object, const char* key, const std::string& where, bool fallback);
std::string json_string(const Json& object, const char* key, const std::string& where);
std::string json_string(const Json& object, const char* key, const std::string& where, const std::string& fallback);
// The member, which must be an object (or array); InputError otherwise.
const Json& json_object(const Json& object, const char* key, const std::string& where);
const Json& json_array(const Json& object, const char* key, const std::string& where);

// Two spaces, a final newline; unsafe characters (foreign_text.h) as \uXXXX, bytes that are not UTF-8 as escape_text().
std::string dump_json(const Json& value);

}  // namespace oscar
