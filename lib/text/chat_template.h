// Renders the model's Jinja chat template as transformers' apply_chat_template does, with tools, documents, calls and
// further variables. Tests compare templates in the style of Qwen, Llama 3, Mistral, gpt-oss and others with
// transformers. If a template needs a feature that jinja/ lacks, render() throws InputError and suggests passing
// rendered text.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/dialects.h"

namespace oscar {

namespace jinja {
class Template;
}

// The arguments of apply_chat_template.
struct ChatInput {
  Json messages;                    // array of objects
  Json tools, documents;            // arrays of objects, or null
  Json variables = Json::object();  // further template variables (enable_thinking, ...)
  bool add_generation_prompt = false;
  Api api = Api::kChat;  // whose the messages are
  std::string effort;    // of reasoning, which servers also tell as "enable_thinking"; "disabled": no thinking
};

// kServer: first changes messages as servers do (server_messages.h). kTransformers: uses them as apply_chat_template
// does.
enum class Rendering { kServer, kTransformers };

class ChatTemplate {
 public:
  // Reads the templates of the model directory: chat_template.jinja and additional_chat_templates/, otherwise from
  // tokenizer_config.json, otherwise from chat_template.json. Accepts a model without a template; render() then throws.
  static ChatTemplate from_model(const fs::path& directory);
  // The text that apply_chat_template renders; null members of messages are left out, as there. If the template writes
  // BOS, the text contains it, so encode it without special tokens.
  // `unread`, if given, gets the names of what the template does not see (server_messages.h).
  std::string render(const ChatInput& input, std::vector<std::string>* unread = nullptr) const;
  // Whether a template mentions this variable; other arguments change nothing.
  bool names(std::string_view variable) const;
  const std::string& kind() const { return kind_; }  // chatml | llama3 | mistral | other | none

  void set_rendering(Rendering rendering) { rendering_ = rendering; }  // default: as transformers

  // Sets the day for the function strftime_now, "2026-11-22"; UsageError for any other form. The default is the time
  // when the templates were read, as in transformers.
  void set_date(const std::string& date);
  std::string date() const;  // that day
  bool asks_for_date() const { return asks_for_date_; }

 private:
  struct Named {
    std::string where;  // the file
    std::string fault;  // why it cannot be rendered, if it is invalid or unsupported
    std::shared_ptr<const jinja::Template> compiled;
    bool knows_developer = false;  // whether it names that role
    bool marks_answers = false;    // with {% generation %}, which vLLM does not know where it asks for late systems
  };
  void add(const std::string& name, const std::string& source, const std::string& where);
  const Named& choose(bool with_tools) const;
  void serve(const Named& chosen, ChatInput& input, std::vector<std::string>& unread) const;
  std::optional<std::string> with_effort(const Named& chosen, const std::string& effort) const;
  bool takes_late_system(const Named& chosen) const;
  std::string rendered(const Named& chosen, const ChatInput& input) const;

  std::string kind_ = "none";
  std::string sources_;                                              // of all templates
  std::map<std::string, Named> templates_;                           // "default", "tool_use", ...
  std::vector<std::pair<std::string, std::string>> special_tokens_;  // bos_token and others, by name
  std::tm now_{};
  bool asks_for_date_ = false;
  Rendering rendering_ = Rendering::kTransformers;
};

}  // namespace oscar
