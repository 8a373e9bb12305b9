// The distance between two names, for messages that suggest the intended name.
#pragma once

#include <cstddef>
#include <string>

namespace oscar {

// The number of letters to change, insert or delete to get from one name to the other (Levenshtein 1966). Takes
// a.size() * b.size() steps, so shorten untrusted names first.
std::size_t edit_distance(const std::string& a, const std::string& b);

}  // namespace oscar
