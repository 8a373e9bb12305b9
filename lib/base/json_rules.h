// Reads JSON less strictly than parse_json() in json.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace oscar {

// kLastKey: for a repeated key the last value counts and keeps the first position, as in Python. kPython: also reads a
// text of kNumberMark and a name (NaN, Infinity, -Infinity) as that number.
enum class JsonRules { kStrict, kLastKey, kPython };
constexpr std::string_view kNumberMark = "oscar-number:";

// parse_json() with these rules.
Json parse_json_by(JsonRules rules, std::string_view text, const std::string& where, int max_depth = 64);

// As Python's json module: NaN, Infinity and -Infinity are numbers, and for a repeated key the last value counts. Files
// that transformers reads this way are read alike, config.json among them.
Json parse_python_json(std::string_view text, const std::string& where, int max_depth = 64);
Json read_python_json(const fs::path& path, std::uint64_t max_bytes = std::uint64_t{256} << 20);

// The position after the closing quote of the string that opens at `at`; npos if it does not end.
std::size_t end_of_json_string(std::string_view text, std::size_t at);

// Explains why a text is not JSON in the project's own words. The parser's message would repeat untrusted bytes and
// name its classes. Takes the data of nlohmann's parse_error event: the bytes read so far and the exception text.
// Returns one clause without a period, such as "is not valid JSON: it ends inside a string" or "... : line 3, column 7:
// found ']' where
// ...".
std::string json_fault(std::string_view text, std::size_t bytes_read, std::string_view exception);

}  // namespace oscar
