#include "text/text_hashes.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/errors.h"
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

namespace {

constexpr std::size_t kLeastShared = 2;
constexpr double kMostShared = 0.01;  // share of a text's passages

std::uint64_t hash_value(const Json& json) {
  const std::string text = json.is_string() ? json.get<std::string>() : std::string();
  std::uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || end.ptr != text.data() + text.size()) {
    throw InputError("the record of the calibration prompts holds a hash that is not 16 hexadecimal digits");
  }
  return value;
}

Json list_of(const Json& prompts, const char* name) {
  const auto found = prompts.find(name);
  return found != prompts.end() && found->is_array() ? *found : Json::array();
}

bool enough(const SharedPassages& p) {
  return p.shared >= kLeastShared && static_cast<double>(p.shared) >= kMostShared * static_cast<double>(p.compared);
}

}  // namespace

bool SeenText::seen() const { return !document.empty() || enough({compared, shared}); }

std::string SeenText::reason() const {
  if (!document.empty()) return "is one of the prompts (hash " + document + ")";
  return "shares passages with the prompts (" + std::to_string(shared) + " of " + std::to_string(compared) +
         " that were scored and compared)";
}

SeenText find_seen_text(const Json& parts, const std::vector<std::int32_t>& ids,
                        const std::vector<std::int32_t>& scored) {
  SeenText found;
  if (!parts.is_array()) return found;
  const std::string document = document_hash(ids);
  double most = -1;
  for (const Json& part : parts) {
    const auto prompts = part.is_object() ? part.find("prompts") : part.end();
    if (!part.is_object() || prompts == part.end() || !prompts->is_object()) continue;
    for (const Json& hash : list_of(*prompts, "documents")) {
      if (hash == document) found.document = document;
    }
    std::vector<std::uint64_t> record;
    for (const Json& hash : list_of(*prompts, "passages")) record.push_back(hash_value(hash));
    std::sort(record.begin(), record.end());
    const SharedPassages p = shared_passages(record, scored);
    const double share = p.compared > 0 ? static_cast<double>(p.shared) / static_cast<double>(p.compared) : 0;
    if (p.compared == 0 || share <= most) continue;
    most = share;
    found.compared = p.compared, found.shared = p.shared;
  }
  return found;
}

}  // namespace oscar
