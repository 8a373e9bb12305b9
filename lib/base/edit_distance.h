// How far two names are apart, for messages that name what was probably meant.
#pragma once

#include <cstddef>
#include <string>

namespace oscar {

// Letters that have to be changed, added or taken away to make one of the other (Levenshtein 1966). Takes a.size()
// times b.size() steps: cut foreign names before.
std::size_t edit_distance(const std::string& a, const std::string& b);

}  // namespace oscar
