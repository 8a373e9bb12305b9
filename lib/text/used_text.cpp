#include "text/used_text.h"

#include <cstdio>

#include "text/document_hash.h"
#include "text/passage_hashes.h"

namespace oscar {

Json used_text_record(const std::vector<std::vector<std::int32_t>>& documents) {
  Json hashes = Json::array(), passages = Json::array();
  for (const std::vector<std::int32_t>& ids : documents) hashes.push_back(document_hash(ids));
  for (const std::uint64_t hash : passage_hashes(documents, kPassageHashes)) {
    char text[24];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
    passages.push_back(text);
  }
  return {{"documents", std::move(hashes)}, {"passages", std::move(passages)}};
}

}  // namespace oscar
