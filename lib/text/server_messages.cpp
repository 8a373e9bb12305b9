#include "text/server_messages.h"

#include "base/errors.h"
#include "base/json_rules.h"

namespace oscar {
namespace {

void decode_arguments(Json& call) {
  if (!call.is_object() || !json_member(call, "function").is_object()) return;
  Json& function = call["function"];
  const Json arguments = json_member(function, "arguments");
  if (arguments.is_object() || arguments.is_array()) return;
  if (arguments.is_null() || arguments == Json("")) {
    function["arguments"] = Json::object();
    return;
  }
  const std::string where = "'arguments' of a tool call";
  if (!arguments.is_string()) throw InputError(where + " is " + arguments.type_name() + ", expected JSON text");
  Json meant = parse_python_json(arguments.get<std::string>(), where);
  if (!meant.is_object() && !meant.is_array()) {
    throw InputError(where + " is the JSON text of " + meant.type_name() + ", expected that of an object");
  }
  function["arguments"] = std::move(meant);
}

// The texts of the parts; null if one is not text.
Json flattened(const Json& parts) {
  std::string text;
  bool first = true;
  for (const Json& part : parts) {
    const Json& type = json_member(part, "type");
    const bool is_text =
        part.is_string() ||
        ((type.is_null() || type == "text" || type == "input_text" || type == "output_text" || type == "refusal") &&
         json_member(part, "text").is_string());
    if (!is_text) return nullptr;
    text += (first ? "" : "\n") + (part.is_string() ? part : part["text"]).get<std::string>();
    first = false;
  }
  return text;
}

}  // namespace

Json server_messages(const Json& messages, bool flatten) {
  Json out = messages;
  for (Json& message : out) {
    if (!message.is_object()) continue;
    const bool answer = json_member(message, "role") == "assistant";
    if (answer && json_member(message, "content").is_null()) message["content"] = "";
    if (answer && json_member(message, "tool_calls").is_array()) {
      for (Json& call : message["tool_calls"]) decode_arguments(call);
    }
    if (!flatten || !json_member(message, "content").is_array()) continue;
    Json text = flattened(message["content"]);
    if (!text.is_null()) message["content"] = std::move(text);
  }
  return out;
}

}  // namespace oscar
