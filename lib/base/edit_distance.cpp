#include "base/edit_distance.h"

#include <algorithm>
#include <numeric>

namespace oscar {

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitution, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::string meant_name(const std::string& name, const std::vector<std::string>& known) {
  const std::string start = name.substr(0, 64);
  std::size_t least = std::max<std::size_t>(2, start.size() / 3) + 1;
  std::string found;
  for (const std::string& one : known) {
    if (const std::size_t distance = edit_distance(start, one); distance < least) {
      least = distance;
      found = one;
    }
  }
  return found;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known, const std::string& otherwise) {
  const std::string meant = meant_name(name, known);
  return meant.empty() ? otherwise : "; did you mean '" + meant + "'?";
}

}  // namespace oscar
