#include <string_view>

#include "checkpoint/checkpoint.h"

namespace oscar {
namespace {

// Keys that record who wrote the file and where it came from, the dtype and run settings, and the tokens that end a
// text. python/oscar_kv/files/fingerprint.py has the same list.
constexpr std::string_view kVolatile =
    " _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path attn_implementation "
    "auto_map bos_token_id dtype eos_token_id output_attentions output_hidden_states pad_token_id return_dict "
    "torch_dtype torchscript transformers_version unsloth_fixed unsloth_version use_cache ";

Json without_volatile(const Json& config) {
  Json out = Json::object();
  auto& members = out.get_ref<Json::object_t&>();  // appended: operator[] looks through all keys each time
  for (const auto& [key, value] : config.items()) {
    if (is_one_of(key, kVolatile)) continue;
    const bool part = value.is_object() && key.ends_with("_config") && key != "quantization_config";
    members.emplace_back(key, part ? without_volatile(value) : value);
  }
  return out;
}

}  // namespace

std::string canonical_config(const Json& config) {
  return canonical_json(config.is_object() ? without_volatile(config) : config);
}

}  // namespace oscar
