// Chat templates: the Jinja template of the model, rendered as transformers' apply_chat_template does, with tools,
// documents, calls and further variables. Templates in the style of Qwen, Llama 3, Mistral, gpt-oss and others are
// tested against transformers; one that needs what jinja/ lacks makes render() throw InputError that says to pass
// rendered text instead.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace oscar {

namespace jinja {
class Template;
}

// What apply_chat_template takes.
struct ChatInput {
  Json messages;                    // array of objects
  Json tools, documents;            // arrays of objects, or null
  Json variables = Json::object();  // further variables of the template (enable_thinking, ...)
  bool add_generation_prompt = false;
};

// kServer: messages are changed as servers change them first (server_messages.h). kTransformers: they are taken as
// apply_chat_template takes them.
enum class Rendering { kServer, kTransformers };

class ChatTemplate {
 public:
  // Reads the model directory's templates: chat_template.jinja and additional_chat_templates/, else those of
  // tokenizer_config.json, else that of chat_template.json. A model without one is accepted, and render() then refuses.
  static ChatTemplate from_model(const fs::path& directory);
  // The text that apply_chat_template renders; members of messages that are null are left out, as there. It already
  // holds BOS where the template writes it, so encode it without special tokens.
  std::string render(const ChatInput& input) const;
  const std::string& kind() const { return kind_; }  // chatml | llama3 | mistral | other | none

  void set_rendering(Rendering rendering) { rendering_ = rendering; }  // without it as transformers

  // The day that the function strftime_now tells, "2026-11-22"; UsageError for anything else. Without it the time at
  // which the templates were read, as in transformers.
  void set_date(const std::string& date);
  std::string date() const;  // that day
  bool asks_for_date() const { return asks_for_date_; }

 private:
  struct Named {
    std::string where;  // the file
    std::string fault;  // why it cannot be rendered, when it is not valid or not supported
    std::shared_ptr<const jinja::Template> compiled;
    mutable std::optional<bool> knows_parts;  // whether it writes the texts of a content that is a list of parts
  };
  void add(const std::string& name, const std::string& source, const std::string& where);
  const Named& choose(bool with_tools) const;
  bool knows_parts(const Named& named) const;
  std::string rendered(const Named& chosen, const ChatInput& input) const;

  std::string kind_ = "none";
  std::map<std::string, Named> templates_;                           // "default", "tool_use", ...
  std::vector<std::pair<std::string, std::string>> special_tokens_;  // bos_token and others, by name
  std::tm now_{};
  bool asks_for_date_ = false;
  Rendering rendering_ = Rendering::kTransformers;
};

}  // namespace oscar
