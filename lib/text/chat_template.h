// Chat templates: the Jinja template of the model, found in chat_template.jinja or tokenizer_config.json and rendered
// as transformers' apply_chat_template does for plain messages without tools. ChatML (Qwen), Llama 3 and Mistral are
// tested against transformers; a template that needs more of Jinja than the subset in jinja/ makes render() throw
// InputError that says to pass rendered text instead.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"

namespace oscar {

namespace jinja {
class Template;
}

struct ChatMessage {
  std::string role, content;
};

class ChatTemplate {
 public:
  // Reads the model directory's template; a model without one is accepted, and render() then refuses.
  static ChatTemplate from_model(const fs::path& directory);
  // The text that apply_chat_template renders (add_generation_prompt when the last message is not the assistant's).
  // It already holds BOS where the template writes it, so encode it without special tokens. The function strftime_now
  // is left undefined: a template that offers today's date writes its own fixed date, so that equal inputs give equal
  // texts on any day.
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;
  const std::string& kind() const { return kind_; }  // chatml | llama3 | mistral | other | none

 private:
  std::string kind_ = "none";
  std::string where_;  // the file of the template
  std::string fault_;  // why it cannot be rendered, when it is not valid or not supported
  std::shared_ptr<const jinja::Template> template_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;  // bos_token and others, by name
};

}  // namespace oscar
