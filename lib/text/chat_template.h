// Built-in chat templates (ChatML, Llama 3, Mistral), recognised from tokenizer_config.json / chat_template.jinja.
// A template that is none of them makes render() throw InputError that says to pass rendered text instead.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace oscar {

struct ChatMessage {
  std::string role, content;
};

class ChatTemplate {
 public:
  // Reads the model directory's template; a model without one is accepted, and render() then refuses.
  static ChatTemplate from_model(const fs::path& directory);
  // The text that transformers' apply_chat_template renders (add_generation_prompt when the last message is not the
  // assistant's). It already holds BOS where the template writes it, so encode it without special tokens.
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;
  const std::string& kind() const { return kind_; }  // chatml | llama3 | mistral | none | unknown

 private:
  std::string kind_ = "none";
  std::string bos_, eos_;
  std::string variant_;  // details the render needs
};

}  // namespace oscar
