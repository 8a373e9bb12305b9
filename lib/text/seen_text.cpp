#include "text/seen_text.h"

#include <algorithm>
#include <charconv>

#include "base/errors.h"
#include "text/text_hashes.h"

namespace oscar {
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
