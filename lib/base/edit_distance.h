// The distance between two names, for messages that suggest the intended name.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace oscar {

// The number of letters to change, insert or delete to get from one name to the other (Levenshtein 1966). Takes
// a.size() * b.size() steps, so shorten untrusted names first.
std::size_t edit_distance(const std::string& a, const std::string& b);

// The known name that was probably meant: at most two letters, or a third of them, are other. Empty if there is none.
std::string meant_name(const std::string& name, const std::vector<std::string>& known);

// "; did you mean '--bits'?" of that name, or `otherwise`.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& known,
                         const std::string& otherwise = "");

}  // namespace oscar
