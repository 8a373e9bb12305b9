#include "text/text_hashes.h"

#include <algorithm>
#include <limits>

#include "base/formatted.h"
#include "base/hash.h"
#include "base/random.h"

namespace oscar {
namespace {

void sort_unique(std::vector<std::uint64_t>& hashes) {
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

}  // namespace

std::string document_hash(const std::vector<std::int32_t>& ids) {
  Sha256 hash;
  for (const std::int32_t id : ids) {
    const auto bits = static_cast<std::uint32_t>(id);
    const unsigned char bytes[4] = {static_cast<unsigned char>(bits), static_cast<unsigned char>(bits >> 8),
                                    static_cast<unsigned char>(bits >> 16), static_cast<unsigned char>(bits >> 24)};
    hash.update(bytes, sizeof bytes);
  }
  return hash.hex().substr(0, 16);
}

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
    ++out.compared;
    out.shared += std::binary_search(record.begin(), record.end(), hash) ? 1 : 0;
  }
  return out;
}

Json used_text_record(const std::vector<std::vector<std::int32_t>>& documents) {
  Json hashes = Json::array(), passages = Json::array();
  for (const std::vector<std::int32_t>& ids : documents) hashes.push_back(document_hash(ids));
  for (const std::uint64_t hash : passage_hashes(documents, kPassageHashes)) {
    passages.push_back(formatted("%016llx", static_cast<unsigned long long>(hash)));
  }
  return {{"documents", std::move(hashes)}, {"passages", std::move(passages)}};
}

}  // namespace oscar
