#include <algorithm>

#include "statistics/statistics.h"

namespace oscar {

std::int64_t longest_distance(const Statistics& s) {
  if (!s.metadata.is_object()) return 0;
  const auto parts = s.metadata.find("parts");
  if (parts == s.metadata.end() || !parts->is_array()) return 0;
  std::int64_t longest = 0;
  for (const Json& part : *parts) {
    const auto found = part.is_object() ? part.find("longest_sequence") : part.end();
    if (!part.is_object() || found == part.end() || !found->is_number_integer()) return 0;
    longest = std::max(longest, found->get<std::int64_t>());
  }
  return std::max<std::int64_t>(longest - 1, 0);
}

}  // namespace oscar
