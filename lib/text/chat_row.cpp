#include "text/chat_row.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <string_view>

#include "base/errors.h"
#include "base/json_rules.h"
#include "text/row_json.h"

namespace oscar {
namespace {

bool is_argument(const std::string& key) {
  return is_one_of(key, " messages tools documents add_generation_prompt chat_template_kwargs ");
}

// A function's members that tables keep as JSON text.
void decode_members(Json& function, const std::string& where) {
  for (const char* key : {"function", "parameters", "input_schema"}) {
    if (json_member(function, key).is_string()) function[key] = decoded(function[key], where);
  }
}

// An array of objects, or null if the key is absent. Some datasets store such lists, or parts of them, as JSON text.
Json list_of_objects(const Json& row, const char* key, const std::string& where) {
  const Json& found = json_member(row, key);
  const bool blank =
      found.is_string() && found.get_ref<const std::string&>().find_first_not_of(" \t\r\n") == std::string::npos;
  if (!has_value(row, key) || blank) return nullptr;
  Json list = found.is_string() ? parse_python_json(found.get<std::string>(), where + ": '" + key + "'") : found;
  if (list.is_null()) return nullptr;
  if (!list.is_array()) {
    throw InputError(where + ": '" + key + "' is " + list.type_name() + ", expected an array of objects");
  }
  for (Json& entry : list) {
    entry = decoded(entry, where);
    if (!entry.is_object()) {
      throw InputError(where + ": '" + key + "' holds " + entry.type_name() + ", expected an array of objects");
    }
    decode_members(entry, where);
    if (json_member(entry, "function").is_object()) decode_members(entry["function"], where);
  }
  return list;
}

// Keyword arguments of apply_chat_template: the row's other keys and the members of chat_template_kwargs.
Json template_variables(const Json& extras, const std::string& where) {
  Json variables = Json::object();
  const auto add_all = [&](const Json& members, bool must_be_variables) {
    for (const auto& [key, value] : members.items()) {
      if (must_be_variables && (is_argument(key) || key == "chat_template")) {
        throw InputError(where + ": 'chat_template_kwargs' holds '" + key + "', which is no variable of a template");
      }
      if (key == "continue_final_message" && value != Json(false) && !value.is_null()) {
        throw InputError(where + ": 'continue_final_message' is not supported; pass {\"text\": ...} rows");
      }
      if (!is_argument(key)) variables[key] = value;
    }
  };
  add_all(extras, false);
  if (has_value(extras, "chat_template_kwargs")) add_all(json_object(extras, "chat_template_kwargs", where), true);
  return variables;
}

// Whether the text holds the last words of a message's content. Templates trim texts and cut thoughts before them.
bool holds_end(const std::string& rendered, const Json& content) {
  if (content.is_array()) {
    return std::all_of(content.begin(), content.end(),
                       [&](const Json& part) { return holds_end(rendered, json_member(part, "text")); });
  }
  if (!content.is_string()) return true;
  const auto& text = content.get_ref<const std::string&>();
  const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || (c & 0x80) != 0; };
  const auto end = std::find_if(text.rbegin(), text.rend(), word).base();
  const auto begin = std::find_if_not(std::make_reverse_iterator(end), text.rend(), word).base();
  return rendered.find(std::string(begin, end)) != std::string::npos;
}

// Whether the list counts 0, 1, 2, ... over the kept positions.
bool only_counts(const Json& list, const std::vector<bool>& kept) {
  if (!list.is_array() || list.size() != kept.size()) return false;
  std::int64_t next = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] && list[i] != Json(next++)) return false;
  }
  return true;
}

bool all_zero(const Json& list) {
  return list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& x) { return x == Json(0); });
}

std::vector<bool> kept_positions(const PromptRow& row, const std::string& where) {
  std::vector<bool> kept(row.ids.size(), true);
  if (row.mask.is_null()) return kept;
  if (row.mask.size() != kept.size()) {
    throw InputError(where + ": 'attention_mask' has " + std::to_string(row.mask.size()) + " numbers, expected " +
                     std::to_string(kept.size()) + ", as many as there are ids");
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const Json& value = row.mask[i];
    const bool one = value == Json(1) || value == Json(true), zero = value == Json(0) || value == Json(false);
    if (!one && !zero) {
      throw InputError(where + ": 'attention_mask' holds " + value.dump().substr(0, 40) + ", expected 0 and 1");
    }
    kept[i] = one;
  }
  return kept;
}

}  // namespace

ChatInput chat_of_row(const PromptRow& row, const std::string& where) {
  ChatInput input{.messages = row.messages,
                  .tools = list_of_objects(row.extras, "tools", where),
                  .documents = list_of_objects(row.extras, "documents", where)};
  // If a conversation ends with a question, the model is asked to answer it.
  const bool answered = input.messages.back()["role"] == "assistant";
  input.add_generation_prompt = json_bool(row.extras, "add_generation_prompt", where, !answered);
  input.variables = template_variables(row.extras, where);
  input.api = row.api;
  const Json& effort = json_member(row.extras, "reasoning_effort");
  input.effort = row.effort.empty() && effort.is_string() ? effort.get<std::string>() : row.effort;
  return input;
}

std::vector<std::string> unwritten(const Json& messages, const ChatTemplate& chat, const std::string& rendered) {
  constexpr std::array<std::string_view, 3> kThoughts = {"reasoning", "reasoning_content", "thinking"};
  const auto named = [&](const auto& keys) {
    return std::any_of(keys.begin(), keys.end(), [&](std::string_view key) { return chat.names(key); });
  };
  std::vector<std::string> names;
  for (const Json& message : messages) {
    for (const auto& [key, value] : message.items()) {
      const bool thought = std::find(kThoughts.begin(), kThoughts.end(), key) != kThoughts.end();
      if (key == "content") {
        if (!holds_end(rendered, value)) names.push_back("content of " + json_string(message, "role", "a message"));
      } else if (says(message, key) && !is_label(key)) {
        if (thought ? !named(kThoughts) : !chat.names(key)) names.push_back(key);
      }
    }
  }
  return names;
}

IdRow ids_of_row(const PromptRow& row, std::int64_t vocabulary, const std::string& where) {
  constexpr std::string_view kHarmless = " labels special_tokens_mask length attention_mask offset_mapping ";
  IdRow out;
  const std::vector<bool> kept = kept_positions(row, where);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const Json& id = row.ids[i];
    if (!id.is_number_integer()) {
      throw InputError(where + ": 'input_ids' holds " + id.dump().substr(0, 40) + ", expected integers");
    }
    const bool huge = id.is_number_unsigned() && id.get<std::uint64_t>() > static_cast<std::uint64_t>(INT32_MAX);
    const std::int64_t value = huge ? INT64_MAX : id.get<std::int64_t>();
    if (!kept[i] && value < 0) continue;  // some tools pad with -100
    if (value < 0 || value >= vocabulary || huge) {
      throw InputError(where + ": 'input_ids' holds " + id.dump() + ", outside the model's vocabulary of " +
                       std::to_string(vocabulary));
    }
    if (kept[i]) out.ids.push_back(static_cast<std::int32_t>(value));
  }
  for (const std::string& key : row.unread) {
    if (is_one_of(key, kHarmless)) continue;
    const bool counts = key == "position_ids" && only_counts(row.others[key], kept);
    if (!counts && !(key == "token_type_ids" && all_zero(row.others[key]))) out.not_used.push_back(key);
  }
  return out;
}

}  // namespace oscar
