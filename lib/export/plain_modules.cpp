#include "export/plain_modules.h"

#include <algorithm>

namespace oscar {
namespace {

// Appends to the list with that key; creates it if absent and `make` is true.
void append(Json& object, const char* key, const std::vector<std::string>& modules, bool make) {
  if (json_member(object, key).is_null()) {
    if (!make) return;
    object[key] = Json::array();
  }
  Json& list = object[key];
  if (!list.is_array()) return;
  for (const std::string& module : modules) {
    if (std::find(list.begin(), list.end(), Json(module)) == list.end()) list.push_back(module);
  }
}

// GPTQModel skips modules that match a regular expression after "-:".
void append_patterns(Json& quantization, const std::vector<std::string>& modules) {
  Json& dynamic = quantization["dynamic"];
  if (!dynamic.is_object()) dynamic = Json::object();
  for (const std::string& module : modules) {
    std::string pattern = "-:^";
    for (const char c : module) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
    dynamic[pattern + "$"] = Json::object();
  }
}

}  // namespace

void add_plain_modules(Json& config, const std::vector<std::string>& modules) {
  if (modules.empty() || !json_member(config, "quantization_config").is_object()) return;
  Json& quantization = config["quantization_config"];
  const Json& named = json_member(quantization, "quant_method");
  const std::string method = named.is_string() ? named.get<std::string>() : "";
  if (method == "gptq") return append_patterns(quantization, modules);
  const bool ignores = method == "compressed-tensors" || method == "modelopt";
  append(quantization, "ignore", modules, ignores);
  append(quantization, "modules_to_not_convert", modules, !ignores);
  append(quantization, "ignored_layers", modules, false);
  append(quantization, "exclude_modules", modules, false);
}

void add_plain_modules_modelopt(Json& file, const std::vector<std::string>& modules) {
  if (modules.empty() || !json_member(file, "quantization").is_object()) return;
  append(file["quantization"], "exclude_modules", modules, true);
}

}  // namespace oscar
