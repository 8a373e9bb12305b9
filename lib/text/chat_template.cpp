#include "text/chat_template.h"

#include "base/errors.h"
#include "base/json.h"
#include "text/jinja/template.h"
#include "text/unicode.h"

namespace oscar {
namespace {

constexpr std::uint64_t kMaxTemplateBytes = 4 << 20;
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

// A name for reports; what is rendered never depends on it.
std::string kind_of(const std::string& source) {
  const auto has = [&](const char* text) { return source.find(text) != std::string::npos; };
  if (has("<|im_start|>")) return "chatml";
  if (has("<|start_header_id|>")) return "llama3";
  if (has("[INST]")) return "mistral";
  return "other";
}

// "chat_template" is a text, or a list of named ones of which "default" is meant.
std::string template_of(const Json& config, const std::string& where) {
  const auto entry = config.find("chat_template");
  if (entry == config.end() || entry->is_null()) return "";
  if (entry->is_string()) return entry->get<std::string>();
  if (entry->is_array()) {
    for (const Json& named : *entry) {
      if (json_string(named, "name", where + " chat_template") == "default") {
        return json_string(named, "template", where + " chat_template");
      }
    }
    return "";
  }
  throw InputError(where + ": 'chat_template' is " + entry->type_name() + ", expected a text or a list of templates");
}

}  // namespace

ChatTemplate ChatTemplate::from_model(const fs::path& directory) {
  ChatTemplate chat;
  std::string source;
  const fs::path config_file = directory / "tokenizer_config.json";
  if (fs::exists(config_file)) {
    const std::string where = config_file.string();
    const Json config = read_json(config_file);
    if (!config.is_object()) throw InputError(where + ": found " + config.type_name() + ", expected a JSON object");
    for (const char* name : kSpecialTokens) {
      const auto token = config.find(name);
      if (token == config.end() || token->is_null()) continue;
      const bool object = token->is_object();  // {"content": "<s>", "lstrip": false, ...}
      chat.special_tokens_.emplace_back(
          name, object ? json_string(*token, "content", where) : json_string(config, name, where));
    }
    source = template_of(config, where);
    chat.where_ = where;
  }
  const fs::path own_file = directory / "chat_template.jinja";  // where both exist, transformers reads this one
  if (fs::exists(own_file)) {
    source = read_file(own_file, kMaxTemplateBytes);
    chat.where_ = own_file.string();
  }
  if (source.empty()) return chat;
  chat.kind_ = kind_of(source);
  try {
    chat.template_ = std::make_shared<const jinja::Template>(source);
  } catch (const jinja::TemplateError& e) {
    chat.fault_ = e.what();
  }
  return chat;
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
  constexpr const char* kAdvice = "; render the messages yourself and pass {\"text\": ...} rows";
  if (kind_ == "none") throw InputError(std::string("the model has no chat template") + kAdvice);
  if (template_ == nullptr) {
    throw InputError("the chat template in " + where_ + " is not supported (" + fault_ + ")" + kAdvice);
  }
  jinja::List list;
  for (const ChatMessage& message : messages) {
    if (find_invalid_utf8(message.role + message.content) != std::string::npos) {
      throw InputError("a message of the conversation is not valid UTF-8");
    }
    list.push_back(jinja::Dict{{"role", message.role}, {"content", message.content}});
  }
  jinja::Dict variables{{"messages", std::move(list)},
                        {"tools", jinja::None{}},
                        {"documents", jinja::None{}},
                        {"add_generation_prompt", add_generation_prompt}};
  for (const auto& [name, token] : special_tokens_) variables.emplace_back(name, token);
  try {
    return template_->render(variables);
  } catch (const jinja::TemplateError& e) {
    throw InputError("the chat template in " + where_ + " cannot render this conversation (" + e.what() + ")" +
                     kAdvice);
  }
}

}  // namespace oscar
