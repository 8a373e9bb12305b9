#include "text/chat_template.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_rules.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"
#include "text/server_messages.h"
#include "text/tokenizer/config_tokens.h"

namespace oscar {
namespace {

constexpr std::uint64_t kMaxTemplateBytes = 1 << 20;
constexpr const char* kAdvice = "; render the messages yourself and pass {\"text\": ...} rows";

// A name for reports; rendering never depends on it.
std::string kind_of(const std::string& source) {
  const auto has = [&](const char* text) { return source.find(text) != std::string::npos; };
  if (has("<|im_start|>")) return "chatml";
  if (has("<|start_header_id|>")) return "llama3";
  if (has("[INST]")) return "mistral";
  return "other";
}

// "chat_template" of tokenizer_config.json: a text, a list of named texts, or an object of texts by name.
std::map<std::string, std::string> templates_of(const Json& config, const std::string& where) {
  std::map<std::string, std::string> found;
  const auto entry = config.find("chat_template");
  if (entry == config.end() || entry->is_null()) return found;
  if (entry->is_string()) {
    found["default"] = entry->get<std::string>();
  } else if (entry->is_array()) {
    for (const Json& named : *entry) {
      found[json_string(named, "name", where + " chat_template")] =
          json_string(named, "template", where + " chat_template");
    }
  } else if (entry->is_object()) {
    for (const auto& [name, source] : entry->items()) {
      found[name] = json_string(*entry, name.c_str(), where + " chat_template");
    }
  } else {
    throw InputError(where + ": 'chat_template' is " + entry->type_name() +
                     ", expected a text, or a list or object of templates");
  }
  return found;
}

// Prepares a message as transformers does: drops null members. A reasoning model's thoughts have three names; they are
// stored under the two names that templates read.
jinja::Dict message_of(const Json& message) {
  jinja::Dict members;
  const Json* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto at = message.find(name);
    if (reasoning == nullptr && at != message.end() && !at->is_null()) reasoning = &*at;
  }
  if (reasoning != nullptr) members.emplace_back("thinking", jinja::from_json(*reasoning));
  const auto set = [&](const std::string& name, const Json& value) {
    const auto at = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.first == name; });
    if (at != members.end()) {
      at->second = jinja::from_json(value);
    } else {
      members.emplace_back(name, jinja::from_json(value));
    }
  };
  for (const auto& [name, value] : message.items()) {
    if (!value.is_null()) set(name, value);
  }
  if (reasoning != nullptr) set("reasoning_content", *reasoning);
  return members;
}

jinja::Dict variables_of(const ChatInput& input,
                         const std::vector<std::pair<std::string, std::string>>& special_tokens) {
  jinja::List messages;
  for (const Json& message : input.messages) messages.emplace_back(message_of(message));
  jinja::Dict variables{{"messages", std::move(messages)},
                        {"tools", jinja::from_json(input.tools)},
                        {"documents", jinja::from_json(input.documents)},
                        {"add_generation_prompt", input.add_generation_prompt}};
  for (const auto& [name, value] : input.variables.items()) variables.emplace_back(name, jinja::from_json(value));
  for (const auto& [name, token] : special_tokens) {
    if (!input.variables.contains(name)) variables.emplace_back(name, token);
  }
  return variables;
}

}  // namespace

void ChatTemplate::add(const std::string& name, const std::string& source, const std::string& where) {
  if (source.empty()) return;
  Named& named = templates_[name];
  named.where = where;
  if (name == "default" || kind_ == "none") kind_ = kind_of(source);
  sources_ += source + "\n";
  const auto has = [&](const char* text) { return source.find(text) != std::string::npos; };
  named.knows_developer = has("'developer'") || has("\"developer\"");
  named.marks_answers = has("endgeneration");
  asks_for_date_ = asks_for_date_ || has("strftime_now");
  try {
    if (source.size() > kMaxTemplateBytes) throw jinja::TemplateError("it is longer than 1 MiB");
    named.compiled = std::make_shared<const jinja::Template>(source);
  } catch (const jinja::TemplateError& e) {
    named.fault = e.what();
  }
}

ChatTemplate ChatTemplate::from_model(const fs::path& directory) {
  ChatTemplate chat;
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &chat.now_);
  std::map<std::string, std::string> in_config;
  const fs::path config_file = directory / "tokenizer_config.json";
  const std::string where = config_file.string();
  if (path_exists(config_file)) {
    const Json config = read_python_json(config_file);
    if (!config.is_object()) throw InputError(where + ": found " + config.type_name() + ", expected a JSON object");
    in_config = templates_of(config, where);
  }
  chat.special_tokens_ = read_config_tokens(directory, nullptr).named;
  const fs::path own_file = directory / "chat_template.jinja", folder = directory / "additional_chat_templates";
  std::vector<std::pair<std::string, fs::path>> files;
  if (path_exists(own_file)) files.emplace_back("default", own_file);
  if (folder_exists(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".jinja") files.emplace_back(entry.path().stem().string(), entry.path());
    }
  }
  for (const auto& [name, file] : files) chat.add(name, read_file(file, kMaxTemplateBytes), file.string());
  if (!files.empty()) return chat;  // if both exist, transformers reads the files
  for (const auto& [name, source] : in_config) chat.add(name, source, where);
  const fs::path of_processor = directory / "chat_template.json";  // in multimodal checkpoints
  if (in_config.empty() && path_exists(of_processor)) {
    for (const auto& [name, source] : templates_of(read_python_json(of_processor), of_processor.string())) {
      chat.add(name, source, of_processor.string());
    }
  }
  return chat;
}

bool ChatTemplate::names(std::string_view variable) const {
  const auto in_word = [&](std::size_t at) {
    return at < sources_.size() && (std::isalnum(static_cast<unsigned char>(sources_[at])) != 0 || sources_[at] == '_');
  };
  for (std::size_t at = sources_.find(variable); at != std::string::npos; at = sources_.find(variable, at + 1)) {
    if ((at == 0 || !in_word(at - 1)) && !in_word(at + variable.size())) return true;
  }
  return false;
}

void ChatTemplate::set_date(const std::string& date) {
  int year = 0, month = 0, day = 0;
  const auto read = [&](std::size_t at, std::size_t size, int& value) {
    const char* begin = date.data() + at;
    const auto end = std::from_chars(begin, begin + size, value);
    return end.ec == std::errc() && end.ptr == begin + size && *begin != '-';
  };
  std::tm time{};
  const bool form =
      date.size() == 10 && date[4] == '-' && date[7] == '-' && read(0, 4, year) && read(5, 2, month) && read(8, 2, day);
  time.tm_year = year - 1900;
  time.tm_mon = month - 1;
  time.tm_mday = day;
  time.tm_hour = 12;
  time.tm_isdst = -1;
  std::tm normal = time;
  if (!form || std::mktime(&normal) == -1 || normal.tm_mday != day || normal.tm_mon != month - 1) {
    throw UsageError("--date is " + quote_name(date) + ", expected a day such as 2026-11-22");
  }
  now_ = normal;
}

std::string ChatTemplate::date() const {
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d", &now_));
}

const ChatTemplate::Named& ChatTemplate::choose(bool with_tools) const {
  if (kind_ == "none") throw InputError(std::string("the model has no chat template") + kAdvice);
  auto found = with_tools ? templates_.find("tool_use") : templates_.end();
  if (found == templates_.end()) found = templates_.find("default");
  if (found == templates_.end()) {
    throw InputError(std::string("the model has several chat templates and none of them is the default") + kAdvice);
  }
  if (found->second.compiled == nullptr) {
    throw InputError("the chat template in " + found->second.where + " is not supported (" + found->second.fault + ")" +
                     kAdvice);
  }
  return found->second;
}

// A question with this effort of reasoning; nothing if the template refuses it.
std::optional<std::string> ChatTemplate::with_effort(const Named& chosen, const std::string& effort) const {
  ChatInput input{.messages = {{{"role", "user"}, {"content", "Hi"}}},
                  .variables = {{"reasoning_effort", effort}, {"enable_thinking", effort != "none"}},
                  .add_generation_prompt = true};
  try {
    return chosen.compiled->render(variables_of(input, special_tokens_), now_);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// As vLLM asks: without special tokens and functions.
bool ChatTemplate::takes_late_system(const Named& chosen) const {
  jinja::List messages;
  for (const char* role : {"system", "user", "system", "user"}) {
    messages.emplace_back(jinja::Dict{{"role", role}, {"content", "t"}});
  }
  const jinja::Value none = jinja::Undefined{"strftime_now"};
  try {
    chosen.compiled->render({{"messages", messages}, {"add_generation_prompt", false}, {"strftime_now", none}}, now_);
  } catch (const InputError&) {
    return false;
  }
  return true;
}

void ChatTemplate::serve(const Named& chosen, ChatInput& input, std::vector<std::string>& unread) const {
  if (input.effort == "disabled") {  // "low" for a template that refuses "none", or takes it for another effort
    const std::optional<std::string> none = with_effort(chosen, "none");
    const auto same = [&](const char* effort) { return with_effort(chosen, effort) == none; };
    const bool low = !none || same("low") || same("medium") || same("high") || same("xhigh") || same("max");
    input.effort = low ? "low" : "none";
    input.variables["reasoning_effort"] = input.effort;
  }
  if (!input.effort.empty() && !input.variables.contains("enable_thinking")) {
    input.variables["enable_thinking"] = input.effort != "none";
  }
  if (input.api == Api::kMessages && (chosen.marks_answers || !takes_late_system(chosen)))
    merge_system(input.messages, "");
  input.messages = server_messages(
      input.messages, {chosen.compiled->takes_parts(), chosen.knows_developer, input.api != Api::kResponses}, unread);
  input.tools = server_tools(input.tools, unread);
}

std::string ChatTemplate::render(const ChatInput& input, std::vector<std::string>* unread) const {
  const Named& chosen = choose(!input.tools.is_null());
  if (rendering_ == Rendering::kTransformers) return rendered(chosen, input);
  ChatInput served = input;
  std::vector<std::string> names;
  serve(chosen, served, unread == nullptr ? names : *unread);
  return rendered(chosen, served);
}

std::string ChatTemplate::rendered(const Named& chosen, const ChatInput& input) const {
  try {
    return chosen.compiled->render(variables_of(input, special_tokens_), now_);
  } catch (const InputError& e) {  // a TemplateError or an exhausted budget
    throw InputError("the chat template in " + chosen.where + " cannot render this conversation (" + e.what() + ")" +
                     kAdvice);
  }
}

}  // namespace oscar
