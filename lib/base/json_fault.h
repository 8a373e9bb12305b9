// Why a text is not JSON, in our words: the parser's own would repeat foreign bytes and name its classes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace oscar {

// What nlohmann's parse_error event gives: the bytes read so far and the text of the exception. One clause without an
// end, such as "is not valid JSON: it ends inside a string" or "... : line 3, column 7: found ']' where ...".
std::string json_fault(std::string_view text, std::size_t bytes_read, std::string_view exception);

}  // namespace oscar
