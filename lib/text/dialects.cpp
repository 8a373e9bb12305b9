#include "text/dialects.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "text/row_json.h"

namespace oscar {
namespace {

Json tool_call(const Json& id, const Json& name, const Json& arguments) {
  return {{"id", id}, {"function", {{"name", name}, {"arguments", arguments}}}, {"type", "function"}};
}

void add_tool_call(Json& message, Json call) {
  Json& calls = message["tool_calls"];
  if (!calls.is_array()) calls = Json::array();
  calls.push_back(std::move(call));
}

Json tool_message(const Json& id, const Json& content) {
  return {{"role", "tool"}, {"tool_call_id", id}, {"content", content}};
}

// A message of the Messages API while its blocks are read: what becomes of it, and the messages before it.
struct OpenMessage {
  const std::string where;
  const bool user, system;
  Json made;  // without its content
  Json parts = Json::array(), before = Json::array();
  std::string thoughts;

  void add_text(std::string text) {
    if (text.empty()) return;
    if (system && !parts.empty()) text = parts[0]["text"].get<std::string>() + text;
    if (system) parts = Json::array();
    parts.push_back({{"type", "text"}, {"text", text}});
  }
};

std::string text_of(const Json& block) {
  const Json& text = json_member(block, "text");
  return text.is_string() ? text.get<std::string>() : "";
}

void read_text(const Json& block, OpenMessage& m) {
  if (m.system && text_of(block).starts_with("x-anthropic-billing-header")) return;
  m.add_text(text_of(block));
}

void read_image(const Json&, OpenMessage& m) { m.parts.push_back({{"type", "image"}}); }

void read_thoughts(const Json& block, OpenMessage& m) {
  m.thoughts += json_string(block, "thinking", m.where, "");
  m.made["reasoning"] = m.thoughts;
}

void read_hidden(const Json& block, OpenMessage& m) { m.made["redacted_thinking"] = json_member(block, "data"); }

void read_nothing(const Json&, OpenMessage&) {}

void read_change(const Json&, OpenMessage& m) {  // tools_in_effect() has read it
  if (!m.system) throw InputError(m.where + ": a change of tools is not in a message of the system");
}

void read_call(const Json& block, OpenMessage& m) {
  const Json& input = json_member(block, "input");
  add_tool_call(m.made, tool_call(json_member(block, "id"), json_string(block, "name", m.where, ""),
                                  input.is_object() ? input : Json::object()));
}

// An answer becomes a tool message before the user's. Images in it follow as a user message, references as an answer.
void read_result(const Json& block, OpenMessage& m) {
  const Json& content = json_member(block, "content");
  if (!m.user) {
    if (says(block, "content") && content.is_array())
      throw InputError(m.where + ": a 'tool_result' with blocks is not in a message of the user");
    return m.add_text("Tool result: " + (content.is_string() ? content.get<std::string>() : ""));
  }
  Json answer = tool_message(json_member(block, "tool_use_id"), content.is_string() ? content : Json(""));
  Json images = Json::array(), references = Json::array();
  std::string text;
  bool first = true;
  for (const Json& item : content.is_array() ? content : Json::array()) {
    const Json& type = json_member(item, "type");
    if (type == "text") {
      text += (first ? "" : "\n") + text_of(item);
      first = false;
    } else if (type == "image") {
      images.push_back({{"type", "image"}});
    } else if (type == "tool_reference") {
      const Json& name = json_member(item, "tool_name");
      references.push_back({{"type", type}, {"name", name.is_string() ? name : json_member(item, "name")}});
    } else if (type.is_string()) {
      answer[type.get<std::string>()] = true;  // servers leave it out
    }
  }
  if (content.is_array()) answer["content"] = text;
  m.before.push_back(answer);
  if (!images.empty()) m.before.push_back({{"role", "user"}, {"content", images}});
  if (!references.empty()) m.before.push_back(tool_message(answer["tool_call_id"], references));
}

struct BlockKind {
  std::string_view type;
  bool own;  // only the Messages API has it
  void (*read)(const Json& block, OpenMessage& m);
};
constexpr std::array<BlockKind, 9> kBlocks{{{"text", false, read_text},
                                            {"image", false, read_image},
                                            {"thinking", true, read_thoughts},
                                            {"redacted_thinking", true, read_hidden},
                                            {"tool_use", true, read_call},
                                            {"tool_result", true, read_result},
                                            {"tool_reference", false, read_nothing},
                                            {"tool_addition", true, read_change},
                                            {"tool_removal", true, read_change}}};

template <class Table>
auto find_type(const Table& table, const Json& entry) {
  const Json& type = json_member(entry, "type");
  return std::find_if(table.begin(), table.end(), [&](const auto& row) { return type == Json(row.type); });
}

bool is_own(const Json& block) {
  const auto found = find_type(kBlocks, block);
  return found != kBlocks.end() && found->own && !block.contains("closed");  // other interfaces have such thoughts
}

bool only_chat_has(const Json& message) {
  const Json& role = json_member(message, "role");
  return role == "tool" || role == "developer" || role == "function" || says(message, "tool_calls");
}

}  // namespace

bool has_blocks(const Json& messages) {
  const bool chat = std::any_of(messages.begin(), messages.end(), only_chat_has);
  return std::any_of(messages.begin(), messages.end(), [&](const Json& message) {
    const Json& content = json_member(message, "content");
    return content.is_array() && std::any_of(content.begin(), content.end(), [&](const Json& block) {
             return is_own(block) &&
                    !(chat && json_member(block, "type") == "thinking" && !block.contains("signature"));
           });
  });
}

std::string system_text(const Json& system) {
  if (system.is_string()) return system.get<std::string>();
  Json list = {{{"role", "system"}, {"content", system}}};
  list = messages_of_blocks(list, "'system'");
  return list.empty() || !list[0]["content"].is_string() ? "" : list[0]["content"].get<std::string>();
}

Json messages_of_blocks(const Json& messages, const std::string& where) {
  Json out = Json::array();
  for (const Json& message : messages) {
    const Json& content = json_member(message, "content");
    const Json& role = json_member(message, "role");
    OpenMessage m{where, role == "user", role == "system", message};
    if (content.is_string() && m.system) {
      read_text({{"text", content}}, m);
    } else if (!content.is_array()) {
      out.push_back(message);
      continue;
    }
    m.made.erase("content");
    for (const Json& block : content.is_array() ? content : Json::array()) {
      if (block.is_string()) m.add_text(block.get<std::string>());
      if (block.is_string()) continue;
      const auto kind = find_type(kBlocks, block);
      if (kind == kBlocks.end()) {
        const Json& type = json_member(block, "type");
        throw InputError(where + ": a message has a block " +
                         (type.is_string() ? "of the type " + quote_name(type.get<std::string>()) : "without a type") +
                         ", which servers refuse");
      }
      kind->read(block, m);
    }
    for (Json& earlier : m.before) out.push_back(std::move(earlier));
    if (m.parts.empty() && (m.user || m.system)) continue;
    const bool one = m.parts.size() == 1 && m.parts[0]["type"] == "text";
    if (!m.parts.empty()) m.made["content"] = one ? m.parts[0]["text"] : m.parts;
    out.push_back(std::move(m.made));
  }
  return out;
}

namespace {

// The blocks of a message that add tools to the request's, or remove them.
Json changes_of(const Json& message) {
  Json changes = Json::array();
  const Json& content = json_member(message, "content");
  for (const Json& block : content.is_array() ? content : Json::array()) {
    const Json& type = json_member(block, "type");
    if (type == "tool_addition" || type == "tool_removal") changes.push_back(block);
  }
  return changes;
}

// The tools at the end of a conversation with such blocks.
Json tools_in_effect(const Json& body, const std::string& where) {
  Json tools = Json::object(), out = Json::array();
  std::set<std::string> removed;
  for (const Json& tool : json_member(body, "tools").is_array() ? body["tools"] : Json::array()) {
    tools[json_string(tool, "name", where + ": a tool")] = tool;
  }
  for (const Json& message : json_array(body, "messages", where)) {
    for (const Json& block : changes_of(message)) {
      const bool adds = block["type"] == "tool_addition";
      const Json& change = json_member(block, "tool");
      const Json& defined = json_member(change, "definition");
      const std::string name =
          json_string(defined.is_object() ? defined : change, "name", where + ": a change of tools");
      if (adds && defined.is_object()) tools[name] = defined;
      if (!tools.contains(name)) {
        throw InputError(where + ": a block of the type " + quote_name(block["type"].get<std::string>()) +
                         " names the tool " + quote_name(name) + ", which 'tools' does not have");
      }
      if (adds && !defined.is_object() && tools[name].is_object()) tools[name].erase("defer_loading");
      if (adds) removed.erase(name);
      if (!adds) removed.insert(name);
    }
  }
  for (const auto& [name, tool] : tools.items()) {
    if (!removed.contains(name)) out.push_back(tool);
  }
  return out;
}

// The assistant message that a thought or a text joins: the last message, unless it already has one.
Json& open_answer(Json& messages, const char* key) {
  const Json& last = messages.empty() ? messages : messages.back();
  if (json_member(last, "role") != "assistant" || !json_member(last, key).is_null()) {
    messages.push_back({{"role", "assistant"}});
  }
  return messages.back();
}

void add_call(const Json& item, const Json& arguments, Json& messages) {
  const bool joins = !messages.empty() && json_member(messages.back(), "role") == "assistant";
  if (!joins) messages.push_back({{"role", "assistant"}});
  std::string name = json_string(item, "name", "a call");
  const Json& space = json_member(item, "namespace");
  if (space.is_string() && space != Json("")) name = space.get<std::string>() + "__" + name;
  add_tool_call(messages.back(), tool_call(json_member(item, "call_id"), name, arguments));
}

void add_function_call(const Json& item, Json& messages, const std::string&) {
  add_call(item, json_member(item, "arguments"), messages);
}

void add_custom_call(const Json& item, Json& messages, const std::string&) {
  const Json& input = json_member(item, "input");
  add_call(item, {{"input", input.is_null() ? Json("") : input}}, messages);
}

void add_output(const Json& item, Json& messages, const std::string&) {
  messages.push_back(tool_message(json_member(item, "call_id"), json_member(item, "output")));
}

void add_reasoning(const Json& item, Json& messages, const std::string& where) {
  const Json& hidden = json_member(item, "encrypted_content");
  if (hidden.is_string() && hidden != Json("")) {
    throw InputError(where + ": an item of the type 'reasoning' has 'encrypted_content', which servers refuse");
  }
  for (const char* key : {"content", "summary"}) {
    const Json& texts = json_member(item, key);
    if (!texts.is_array() || texts.empty()) continue;
    open_answer(messages, "reasoning")["reasoning"] = text_of(texts[0]);
    return;
  }
  open_answer(messages, "reasoning")["reasoning"] = "";
}

struct ItemKind {
  std::string_view type;
  void (*add)(const Json& item, Json& messages, const std::string& where);
};
constexpr std::array<ItemKind, 5> kItems{{{"function_call", add_function_call},
                                          {"custom_tool_call", add_custom_call},
                                          {"function_call_output", add_output},
                                          {"custom_tool_call_output", add_output},
                                          {"reasoning", add_reasoning}}};

}  // namespace

bool is_response_item(const Json& entry) { return !entry.contains("role") && find_type(kItems, entry) != kItems.end(); }

void add_response_item(const Json& entry, Json& messages, const std::string& where) {
  if (is_response_item(entry)) return find_type(kItems, entry)->add(entry, messages, where);
  if (!entry.contains("role")) {
    const Json& type = json_member(entry, "type");
    throw InputError(where + ": an item has " +
                     (type.is_string() ? "the type " + quote_name(type.get<std::string>()) : "no 'role'") +
                     ", which servers refuse; remove it from the row");
  }
  const Json& content = json_member(entry, "content");
  const bool parts = content.is_array() && !content.empty();
  const Json& text = parts ? json_member(content[0], "text") : content;
  if (json_member(entry, "role") != "assistant" || !text.is_string()) {
    messages.push_back(entry);
    return;
  }
  Json& answer = open_answer(messages, "content");
  answer["content"] = text;
  if (parts && content.size() > 1) answer["content[1:]"] = content.size() - 1;  // servers read the first part only
}

bool changes_tools(const Json& body) {
  const Json& messages = json_member(body, "messages");
  const auto changes = [](const Json& message) { return !changes_of(message).empty(); };
  return messages.is_array() && std::any_of(messages.begin(), messages.end(), changes);
}

bool has_schemas(const Json& body) {
  const Json& tools = json_member(body, "tools");
  const auto has = [](const Json& tool) { return json_member(tool, "input_schema").is_object(); };
  return tools.is_array() && std::any_of(tools.begin(), tools.end(), has);
}

ApiRequest read_request(const Json& body, const std::string& where) {
  if (!body.is_object()) throw InputError(where + " is " + body.type_name() + ", expected a request, an object");
  const auto has = [&](const char* key) { return has_value(body, key); };
  ApiRequest out;
  out.part = has("messages") ? "messages" : has("prompt") ? "prompt" : "input";
  if (!has(out.part.c_str())) throw InputError(where + " has none of 'messages', 'prompt' and 'input'");
  const bool responses = out.part == "input";
  Json part = body[out.part];
  if (responses && part.is_string()) part = {{{"role", "user"}, {"content", part}}};
  if (responses && part.is_array()) {  // a stored response holds its answer, too
    Json messages = Json::array();
    const Json& output = json_member(body, "output");
    for (const Json& entry : part) add_response_item(entry, messages, where);
    for (const Json& entry : output.is_array() ? output : Json::array()) add_response_item(entry, messages, where);
    if (output.is_string() || output.is_object()) {
      messages.push_back(output.is_object() ? output : Json{{"role", "assistant"}, {"content", output}});
    }
    part = std::move(messages);
  }
  out.row[responses ? "messages" : out.part] = std::move(part);
  for (const char* key : {"tools", "documents", "add_generation_prompt", "continue_final_message",
                          "chat_template_kwargs", "reasoning_effort"}) {
    if (has(key)) out.row[key] = body[key];
  }
  if (changes_tools(body)) out.row["tools"] = tools_in_effect(body, where);
  for (const char* key : {"reasoning", "output_config"}) {
    const Json& effort = json_member(json_member(body, key), "effort");
    if (effort.is_string()) out.row["reasoning_effort"] = effort;
  }
  if (json_member(json_member(body, "thinking"), "type") == "disabled") out.effort = "disabled";
  const char* system = responses ? "instructions" : "system";
  if (has(system)) out.system = system_text(body[system]);
  out.api = responses ? Api::kResponses : has(system) || has_schemas(body) ? Api::kMessages : Api::kChat;
  for (const char* key : {"previous_response_id", "conversation", "functions", "mcp_servers", "chat_template"}) {
    if (has(key)) out.unread.emplace_back(key);
  }
  return out;
}

}  // namespace oscar
