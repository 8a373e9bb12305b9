#include "text/chat_template.h"

#include "base/errors.h"
#include "base/json.h"

namespace oscar {
namespace {

// The plain ChatML loop, whatever its white space and loop variable.
constexpr const char* kPlainChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

}  // namespace

ChatTemplate ChatTemplate::from_model(const fs::path& directory) {
  ChatTemplate chat;
  const fs::path config = directory / "tokenizer_config.json";
  if (!fs::exists(config)) return chat;
  const std::string text = json_string(read_json(config), "chat_template", config.string(), "");
  if (!text.empty()) chat.kind_ = text == kPlainChatMl ? "chatml" : "unknown";
  return chat;
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
  if (kind_ != "chatml") {
    throw InputError(
        "the model's chat template is not one of the supported ones; render the messages yourself and "
        "pass {\"text\": ...} rows");
  }
  std::string out;
  for (const ChatMessage& message : messages) {
    out += "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n";
  }
  if (add_generation_prompt) out += "<|im_start|>assistant\n";
  return out;
}

}  // namespace oscar
