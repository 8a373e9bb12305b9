// Explains why a text is not JSON in the project's own words. The parser's message would repeat untrusted bytes and
// name its classes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace oscar {

// Takes the data of nlohmann's parse_error event: the bytes read so far and the exception text. Returns one clause
// without a period, such as "is not valid JSON: it ends inside a string" or "... : line 3, column 7: found ']' where
// ...".
std::string json_fault(std::string_view text, std::size_t bytes_read, std::string_view exception);

}  // namespace oscar
