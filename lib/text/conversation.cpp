#include "text/dialects.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "text/row_json.h"

namespace oscar {
namespace {

// Speakers of ShareGPT and derived formats.
constexpr std::array<std::pair<const char*, const char*>, 5> kSpeakers{
    {{"user", " human user "},
     {"assistant", " gpt assistant chatgpt bing bard bot model "},
     {"system", " system "},
     {"developer", " developer "},
     {"tool", " tool observation function_response "}}};

const Json& text_or_content(const Json& turn) {
  for (const char* key : {"value", "content", "text"}) {
    const Json& found = json_member(turn, key);
    if (!found.is_null()) return found;
  }
  static const Json none;
  return none;
}

// Calls from a table: a call, or a list of calls, also as JSON text.
Json calls_of(const Json& content, const std::string& where) {
  const Json whole = decoded(content, where);
  Json calls = Json::array();
  for (const Json& entry : whole.is_array() ? whole : Json::array({whole})) {
    Json call = decoded(entry, where);
    if (const Json function = decoded(json_member(call, "function"), where); function.is_object()) {
      call["function"] = function;
      calls.push_back(std::move(call));
    } else if (json_member(call, "name").is_string()) {
      calls.push_back({{"type", "function"}, {"function", std::move(call)}});
    } else {
      throw InputError(where + ": a turn from 'function_call', or 'tool_calls', holds no call with a 'name'");
    }
  }
  return calls;
}

Json message_of_turn(const Json& turn, const std::string& where) {
  const std::string from = json_string(turn, "from", where + ": a turn");
  if (from == "function_call") return {{"role", "assistant"}, {"tool_calls", calls_of(text_or_content(turn), where)}};
  for (const auto& [role, speakers] : kSpeakers) {
    if (!is_one_of(from, speakers)) continue;
    const Json& content = text_or_content(turn);
    if (content.is_null()) throw InputError(where + ": a turn from " + quote_name(from) + " has no 'value'");
    return {{"role", role}, {"content", content}};
  }
  throw InputError(where + ": a turn is from " + quote_name(from) +
                   ", expected human, gpt, system, tool, observation or function_call; rename the speaker");
}

enum class Turn { kMessage, kShareGpt, kPair, kNone };

Turn turn_kind(const Json& turn) {
  if (!turn.is_object()) return Turn::kNone;
  if (turn.contains("role")) return Turn::kMessage;
  if (turn.contains("from")) return Turn::kShareGpt;
  return turn.contains("input") && turn.contains("output") ? Turn::kPair : Turn::kNone;
}

// A message as other formats and tables have it: {"role": "user", "value": "..."}, or calls as JSON text.
Json with_content(Json message, const std::string& where) {
  const Json calls = json_member(message, "tool_calls");
  const auto as_text = [](const Json& call) { return call.is_string() || json_member(call, "function").is_string(); };
  if (calls.is_string() || calls.is_object() || std::any_of(calls.begin(), calls.end(), as_text)) {
    const Json whole = decoded(calls, where);
    const bool blank = whole.is_string() && whole.get<std::string>().find_first_not_of(" \t\r\n") == std::string::npos;
    message["tool_calls"] = blank || whole == Json("null") ? Json() : calls_of(whole, where);
  }
  if (!json_member(message, "content").is_null() || !json_member(message, "tool_calls").is_null()) return message;
  for (const char* key : {"value", "text"}) {
    if (!json_member(message, key).is_string()) continue;
    const Json text = message[key];  // a copy, because a new member moves the others
    message["content"] = text;
    message.erase(key);
    break;
  }
  return message;
}

void append_turn(const Json& turn, Json& messages, const std::string& where) {
  switch (turn_kind(turn)) {
    case Turn::kMessage:
      json_string(turn, "role", where + ": a message");
      messages.push_back(with_content(turn, where));
      return;
    case Turn::kShareGpt:
      messages.push_back(message_of_turn(turn, where));
      return;
    case Turn::kPair:
      if (const Json& system = json_member(turn, "system"); system.is_string() && system != Json("")) {
        messages.push_back({{"role", "system"}, {"content", system}});
      }
      messages.push_back({{"role", "user"}, {"content", turn["input"]}});
      messages.push_back({{"role", "assistant"}, {"content", turn["output"]}});
      return;
    case Turn::kNone:
      break;
  }
  if (!turn.is_object()) throw InputError(where + ": a message is " + turn.type_name() + ", expected an object");
  json_string(turn, "role", where + ": a message");  // reports that it is missing
}

}  // namespace

std::optional<Json> as_conversation(const Json& value, const std::string& where) {
  const Json whole = decoded(value, where);
  Json list = whole.is_object() ? Json::array({whole}) : whole;
  if (!list.is_array() || list.empty()) return std::nullopt;
  for (Json& turn : list) turn = decoded(turn, where);
  Json messages = Json::array();
  if (std::any_of(list.begin(), list.end(), is_response_item)) {
    for (const Json& entry : list) add_response_item(entry, messages, where);
    return messages;
  }
  if (turn_kind(list.front()) == Turn::kNone) return std::nullopt;
  for (const Json& turn : list) append_turn(turn, messages, where);
  return messages;
}

Json need_conversation(const Json& value, const std::string& key, const std::string& where) {
  if (std::optional<Json> found = as_conversation(value, where)) return *std::move(found);
  const Json whole = decoded(value, where);
  if (!whole.is_array()) {
    throw InputError(where + ": '" + key + "' is " + whole.type_name() + ", expected an array of messages");
  }
  Json messages = Json::array();
  for (const Json& turn : whole) append_turn(decoded(turn, where), messages, where);
  return messages;
}

}  // namespace oscar
