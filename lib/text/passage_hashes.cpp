#include "text/passage_hashes.h"

#include <algorithm>
#include <limits>

#include "base/random.h"

namespace oscar {
namespace {

void sort_unique(std::vector<std::uint64_t>& hashes) {
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

}  // namespace

std::vector<std::uint64_t> passage_hashes(const std::vector<std::vector<std::int32_t>>& documents, std::size_t most) {
  std::vector<std::uint64_t> hashes;
  for (const std::vector<std::int32_t>& ids : documents) {
    for (std::size_t first = 0; first + kPassageTokens <= ids.size(); ++first) {
      std::uint64_t hash = 0;
      for (std::size_t i = first; i < first + kPassageTokens; ++i) {
        hash = mix64(hash ^ static_cast<std::uint64_t>(static_cast<std::uint32_t>(ids[i])));
      }
      hashes.push_back(hash);
    }
    if (most == 0 || hashes.size() < 64 * most) continue;
    sort_unique(hashes);  // memory does not grow with the documents
    if (hashes.size() > most) hashes.resize(most);
  }
  sort_unique(hashes);
  if (most > 0 && hashes.size() > most) hashes.resize(most);
  return hashes;
}

SharedPassages shared_passages(const std::vector<std::uint64_t>& record, const std::vector<std::int32_t>& text) {
  SharedPassages out;
  if (record.empty()) return out;
  const bool cut = record.size() >= kPassageHashes;
  const std::uint64_t last = cut ? record.back() : std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t hash : passage_hashes({text}, 0)) {
    if (hash > last) break;
    ++out.judged;
    out.shared += std::binary_search(record.begin(), record.end(), hash) ? 1 : 0;
  }
  return out;
}

}  // namespace oscar
