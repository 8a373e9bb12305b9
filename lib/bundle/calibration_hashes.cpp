#include "bundle/calibration_hashes.h"

#include "base/errors.h"
#include "base/foreign_text.h"

namespace oscar {
namespace {

constexpr const char* kFormat = "oscar-calibration-hashes";
constexpr std::int64_t kVersion = 1;
constexpr const char* kLists[] = {"documents", "passages"};

bool is_hash(const Json& value) {
  if (!value.is_string()) return false;
  const std::string text = value.get<std::string>();
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

Json take_calibration_hashes(Json& collection) {
  Json taken = Json::array();
  if (!collection.is_object() || !collection.contains("parts") || !collection["parts"].is_array()) return taken;
  for (Json& part : collection["parts"]) {
    if (!part.is_object() || !part.contains("prompts") || !part["prompts"].is_object()) continue;
    Json& prompts = part["prompts"];
    Json found = Json::object();
    for (const char* list : kLists) {
      if (!prompts.contains(list) || !prompts[list].is_array()) continue;
      found[list] = prompts[list];
      prompts.erase(list);
    }
    if (found.empty()) continue;
    if (prompts.contains("sha256")) found["sha256"] = prompts["sha256"];
    taken.push_back({{"prompts", std::move(found)}});
  }
  return taken;
}

Json calibration_hashes_to_json(const Json& parts) {
  return {{"format", kFormat}, {"format_version", kVersion}, {"parts", parts}};
}

Json calibration_hashes_from_json(const Json& json, const std::string& where) {
  if (json_string(json, "format", where) != kFormat) {
    throw InputError(where + ": 'format' is " + quote_name(json_string(json, "format", where)) + ", expected '" +
                     kFormat + "'");
  }
  if (const std::int64_t version = json_int(json, "format_version", where); version != kVersion) {
    throw InputError(where + ": format_version " + std::to_string(version) + " is not the " + std::to_string(kVersion) +
                     " this program reads; update the toolchain");
  }
  const Json& parts = json_array(json, "parts", where);
  for (const Json& part : parts) {
    const Json& prompts = json_object(part, "prompts", where);
    for (const char* list : kLists) {
      if (!prompts.contains(list)) continue;
      for (const Json& hash : json_array(prompts, list, where)) {
        if (is_hash(hash)) continue;
        throw InputError(where + ": '" + list + "' holds " + printable(hash.dump(-1, ' ', true)) +
                         ", expected 16 hexadecimal digits; fit the bundle again");
      }
    }
  }
  return parts;
}

}  // namespace oscar
