// Drives chat templates for the Python tests: one JSON row in, one JSON row {"text"} or {"error"} out.
//   oscar_render              rows {"template", "variables"}
//   oscar_render model-folder rows {"messages", "add_generation_prompt"}; the first output row is {"kind"}
#include <iostream>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/jinja/template.h"

namespace {

using oscar::Json;
namespace jinja = oscar::jinja;

jinja::Value to_value(const Json& json) {
  if (json.is_null()) return jinja::None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    jinja::List items;
    for (const Json& item : json) items.push_back(to_value(item));
    return items;
  }
  jinja::Dict members;
  for (const auto& [key, value] : json.items()) members.emplace_back(key, to_value(value));
  return members;
}

std::string render(const Json& row, const oscar::ChatTemplate* chat) {
  if (chat == nullptr) {
    return jinja::Template(row["template"].get<std::string>()).render(to_value(row["variables"]).dict());
  }
  std::vector<oscar::ChatMessage> messages;
  for (const Json& m : row["messages"]) messages.push_back({m["role"], m["content"]});
  return chat->render(messages, row["add_generation_prompt"].get<bool>());
}

}  // namespace

int main(int argc, char** argv) {
  oscar::ChatTemplate chat;
  try {
    if (argc > 1) {
      chat = oscar::ChatTemplate::from_model(argv[1]);
      std::cout << Json{{"kind", chat.kind()}}.dump() << "\n";
    }
  } catch (const oscar::Error& e) {
    std::cerr << e.what() << "\n";
    return static_cast<int>(e.code());
  }
  for (std::string line; std::getline(std::cin, line);) {
    Json reply;
    try {
      reply["text"] = render(oscar::parse_json(line, "stdin", 200), argc > 1 ? &chat : nullptr);
    } catch (const oscar::Error& e) {
      reply["error"] = e.what();
    }
    std::cout << reply.dump() << "\n";
  }
  return 0;
}
