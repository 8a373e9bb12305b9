// Drives chat templates for the Python tests: one JSON row in, one JSON row {"text"} or {"error"} out.
//   oscar_render              rows {"template", "variables"}
//   oscar_render model-folder rows {"messages", "tools", "documents", "variables",
//                             "add_generation_prompt"}; the first output row is {"kind"}
//   oscar_render model-folder rows
//                             rows of prompts (docs/prompts.md), rendered as by a server; {"text", "unread"}
#include <ctime>
#include <iostream>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "base/json_rules.h"
#include "text/chat_row.h"
#include "text/chat_template.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace {

using oscar::Json;
namespace jinja = oscar::jinja;

std::string render(const Json& row, const oscar::ChatTemplate* chat) {
  if (chat == nullptr) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    return jinja::Template(row["template"].get<std::string>()).render(jinja::from_json(row["variables"]).dict(), local);
  }
  oscar::ChatInput input;
  input.messages = row["messages"];
  for (const auto& [key, list] : {std::pair("tools", &input.tools), std::pair("documents", &input.documents)}) {
    if (row.contains(key)) *list = row[key];
  }
  input.variables = row.value("variables", Json::object());
  input.add_generation_prompt = row["add_generation_prompt"].get<bool>();
  return chat->render(input);
}

Json serve(const std::string& line, oscar::ChatTemplate& chat) {
  chat.set_rendering(oscar::Rendering::kServer);
  const oscar::PromptRow row = oscar::read_prompt_row(oscar::parse_python_json(line, "row"), "", "row");
  if (!row.empty.empty()) throw oscar::InputError("empty '" + row.empty + "'");
  const oscar::ChatInput input = oscar::chat_of_row(row, "row");
  std::vector<std::string> unread = row.unread;
  const std::string text = chat.render(input, &unread);
  for (const std::string& name : oscar::unwritten(input.messages, chat, text)) unread.push_back(name);
  return {{"text", text}, {"unread", unread}};
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
      if (argc > 2) {
        reply = serve(line, chat);
        std::cout << reply.dump() << "\n";
        continue;
      }
      reply["text"] = render(oscar::parse_json(line, "stdin", 200), argc > 1 ? &chat : nullptr);
    } catch (const oscar::Error& e) {
      reply["error"] = e.what();
    }
    std::cout << reply.dump() << "\n";
  }
  return 0;
}
