#include "text/server_messages.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_rules.h"
#include "text/jinja/value.h"
#include "text/row_json.h"

namespace oscar {
namespace {

using Unread = std::vector<std::string>;

// What a part of a message's content becomes, by its type: the text under a key, or the mark of a medium.
struct PartKind {
  std::string_view type, key, mark;
};
constexpr std::array<PartKind, 18> kPartKinds{{{"text", "text", "text"},
                                               {"input_text", "text", "text"},
                                               {"output_text", "text", "text"},
                                               {"refusal", "refusal", "text"},
                                               {"thinking", "thinking", "text"},
                                               {"tool_reference", "name", "tool_reference"},
                                               {"image_url", "", "image"},
                                               {"input_image", "", "image"},
                                               {"image_embeds", "", "image"},
                                               {"image_pil", "", "image"},
                                               {"image", "", "image"},
                                               {"audio_url", "", "audio"},
                                               {"input_audio", "", "audio"},
                                               {"audio_embeds", "", "audio"},
                                               {"audio", "", "audio"},
                                               {"video_url", "", "video"},
                                               {"video_embeds", "", "video"},
                                               {"video", "", "video"}}};

const PartKind& part_kind(const Json& part) {
  const Json& type = json_member(part, "type");
  const auto found = std::find_if(kPartKinds.begin(), kPartKinds.end(), [&](const PartKind& p) {
    return type.is_null() ? !json_member(part, p.type).is_null() : type == Json(p.type);
  });
  if (found != kPartKinds.end()) return *found;
  throw InputError("a part of a message's content has " +
                   (type.is_string() ? "the type " + quote_name(type.get<std::string>()) : std::string("no type")) +
                   ", which servers refuse; remove the part, or pass --render transformers");
}

// The header of a coding agent changes with every request, so servers remove it from system messages.
std::string without_billing(const std::string& text) {
  if (!text.starts_with("x-anthropic-billing-header")) return text;
  const std::size_t line = text.find('\n');
  return line == std::string::npos ? "" : text.substr(line + 1);
}

// Members of parts that only servers read. Others reach the template.
constexpr std::string_view kServerMembers =
    " audio_embeds audio_url closed data file image_embeds image_pil image_url input_audio "
    "name prompt_cache_breakpoint refusal text thinking type uuid video_embeds video_url ";

Json with_others(Json made, const Json& part) {
  for (const auto& [key, value] : part.items()) {
    if (part.is_object() && !is_one_of(key, kServerMembers)) made[key] = value;
  }
  return made;
}

// The parts that a template gets. Only those that take `marks` see where a medium is.
Json server_parts(const Json& content, bool marks, bool system, Unread& unread) {
  Json out = Json::array();
  for (const Json& part : content.is_array() ? content : Json::array({content})) {
    const PartKind& kind = part.is_string() ? kPartKinds[0] : part_kind(part);
    if (kind.key.empty()) {
      unread.emplace_back(kind.type);
      if (marks) out.push_back(with_others({{"type", kind.mark}}, part));
      continue;
    }
    const Json& text = part.is_string() ? part : json_member(part, kind.key);
    if (text.is_null()) continue;
    if (!text.is_string()) {
      throw InputError("a part of a message's content has a " + quote_name(kind.key) + " that is " + text.type_name() +
                       ", expected a text");
    }
    const bool plain = system && kind.type == "text";
    const std::string kept = plain ? without_billing(text.get<std::string>()) : text.get<std::string>();
    if (kept.empty() && (!marks || text != Json(""))) continue;  // joined texts leave empty ones out
    const bool words = kind.mark == "text";
    const Json made = {{"type", kind.mark}, {words ? "text" : "name", kept}};
    out.push_back(words ? with_others(made, part) : made);
  }
  return out;
}

// The texts of parts, one per line. `key`: also this member of parts without a text.
std::string joined(const Json& parts, const char* key = "text") {
  std::string text;
  bool first = true;
  for (const Json& part : parts) {
    const Json& value = json_member(part, json_member(part, "type") == "text" ? "text" : key);
    if (!value.is_string()) continue;
    text += (first ? "" : "\n") + value.get<std::string>();
    first = false;
  }
  return text;
}

Json server_arguments(const Json& given, Unread& unread) {
  Json meant = given;
  if (given.is_string()) {
    const auto& text = given.get_ref<const std::string&>();
    if (jinja::has_huge_integer(text)) {
      throw InputError("'arguments' of a tool call hold a whole number of more than 64 bits, which is not supported");
    }
    try {
      if (text.starts_with("\xEF\xBB\xBF")) throw InputError("a byte order mark");
      meant = parse_python_json(text, "'arguments'");
    } catch (const InputError&) {
      meant = nullptr;
    }
  }
  if (meant.is_object()) return meant;
  if (!given.is_null() && given != Json("")) unread.emplace_back("arguments");
  return Json::object();
}

// The members of an object with these names in front.
Json sorted(const Json& object, const std::vector<const char*>& names) {
  Json out = Json::object();
  for (const char* name : names) {
    if (object.contains(name)) out[name] = object[name];
  }
  out.update(object);
  return out;
}

void change_calls(Json& message, bool sort, Unread& unread) {
  const Json& calls = json_member(message, "tool_calls");
  if (!calls.is_array()) return;
  if (calls.empty()) {
    message.erase("tool_calls");
    return;
  }
  for (Json& call : message["tool_calls"]) {
    if (!json_member(call, "function").is_object()) continue;
    Json& function = call["function"];
    function["arguments"] = server_arguments(json_member(function, "arguments"), unread);
    if (!sort) continue;
    function = sorted(function, {"arguments", "name"});
    call = sorted(call, {"id", "function", "type"});
  }
}

// Without the members that a server passes to no template.
void keep_members(Json& message, Unread& unread) {
  const Json& role = json_member(message, "role");
  const auto kept = [&](const std::string& key, const Json& value) {
    if (key == "role" || key == "content") return true;
    if (key == "name" || key == "task") return value.is_string();
    if (key == "tool_call_id") return role == "tool";
    if (key == "tools") return role == "developer";
    return role == "assistant" && (key == "tool_calls" || key == "reasoning" || key == "reasoning_content");
  };
  Json out = Json::object();
  for (const auto& [key, value] : message.items()) {
    if (kept(key, value))
      out[key] = value;
    else if (says(message, key) && !is_label(key))
      unread.push_back(key);
  }
  message = std::move(out);
}

}  // namespace

Json server_messages(const Json& messages, const ServerOptions& options, Unread& unread) {
  Json out = messages;
  bool converted = false;
  for (Json& message : out) {
    if (!message.is_object()) continue;
    const Json role = json_member(message, "role");
    Json content = json_member(message, "content");
    if (content.is_null()) content = Json::array();
    if (content.is_string() || content.is_structured()) {
      content = server_parts(content, options.parts, role == "system", unread);
      const bool texts = std::all_of(content.begin(), content.end(), [](const Json& p) { return p["type"] == "text"; });
      if (!options.parts || (role == "tool" && texts)) content = joined(content, "name");
      message["content"] = std::move(content);
    }
    for (const char* key : {"reasoning", "reasoning_content"}) {
      const Json thoughts = json_member(message, key);
      if (role == "assistant" && !thoughts.is_null()) {
        message["reasoning"] = message["reasoning_content"] = thoughts;
        break;
      }
    }
    if (role == "assistant") change_calls(message, options.sort_calls, unread);
    if (role == "developer" && !options.developer) {
      message["role"] = "system";
      converted = true;
    }
    keep_members(message, unread);
  }
  if (converted) merge_system(out, "\n\n");
  return out;
}

void merge_system(Json& messages, const std::string& between) {
  std::string text;
  Json others = Json::array();
  bool late = false;
  for (const Json& message : messages) {
    if (json_member(message, "role") != "system") {
      others.push_back(message);
      continue;
    }
    late = late || &message != &messages.front();
    const Json& content = json_member(message, "content");
    const std::string more = content.is_string() ? content.get<std::string>() : joined(content);
    text += (text.empty() || more.empty() ? "" : between) + more;
  }
  if (!late) return;
  others.insert(others.begin(), Json{{"role", "system"}, {"content", text}});
  messages = std::move(others);
}

namespace {

void add_function(const Json& function, const std::string& name, const Json& parameters, const Json& tool, Json& out) {
  Json made = {{"name", name}, {"description", json_member(function, "description")}, {"parameters", parameters}};
  Json entry = {{"type", "function"}};
  for (const char* key : {"strict", "defer_loading"}) {
    const Json& own = json_member(function, key);
    const Json& value = own.is_null() && key == std::string_view("defer_loading") ? json_member(tool, key) : own;
    if (!value.is_null()) made[key] = value;
  }
  entry["function"] = std::move(made);
  if (!json_member(tool, "defer_loading").is_null()) entry["defer_loading"] = tool["defer_loading"];
  out.push_back(std::move(entry));
}

// The only argument of a tool that takes a free text.
Json free_text() {
  const Json input = {{"type", "string"}, {"description", "The freeform text payload for this tool."}};
  return {{"type", "object"},
          {"properties", {{"input", input}}},
          {"required", Json::array({"input"})},
          {"additionalProperties", false}};
}

void add_tool(const Json& tool, const std::string& space, Json& out, Unread& unread) {
  const Json& nested = json_member(tool, "function");
  const Json& function = nested.is_object() ? nested : tool;
  const Json& type = json_member(tool, "type");
  const bool named = json_member(function, "name").is_string();
  const std::string name = named ? space + function["name"].get<std::string>() : "";
  if (json_member(function, "input_schema").is_object()) {
    Json schema = function["input_schema"];
    if (!schema.contains("type")) schema["type"] = "object";
    add_function(function, name, schema, Json(), out);
  } else if (named && type == "custom" && space.empty() &&
             json_member(json_member(function, "format"), "type") != "grammar") {
    add_function(function, name, free_text(), Json(), out);
  } else if (named && type == "namespace") {
    for (const Json& inner : json_array(tool, "tools", "a name space of tools")) {
      add_tool(inner, name + "__", out, unread);
    }
  } else if (named && (type.is_null() || type == "function")) {
    add_function(function, name, json_member(function, "parameters"), nested.is_object() ? tool : Json(), out);
  } else if (type.is_string() && type != "function") {
    unread.push_back("tool " + type.get<std::string>());
  } else {
    out.push_back(tool);
  }
}

}  // namespace

Json server_tools(const Json& tools, Unread& unread) {
  if (!tools.is_array()) return tools;
  Json out = Json::array();
  for (const Json& tool : tools) add_tool(tool, "", out, unread);
  return out;
}

}  // namespace oscar
