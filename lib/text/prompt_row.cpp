#include "text/prompt_row.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_rules.h"
#include "text/dialects.h"
#include "text/row_json.h"

namespace oscar {

const char* const kPromptKeys =
    "\"text\", \"messages\", \"prompt\", \"input_ids\", \"conversations\", \"chosen\", \"instruction\" or another key "
    "that docs/prompts.md lists (--column names any other)";

namespace {

// Keys with a prompt or part of one; they are never chat template variables.
constexpr std::string_view kContentKeys =
    " input_ids messages conversations conversation text prompt completion chosen rejected instruction input context "
    "question query problem content body request params response output answer solution history attention_mask labels ";

// Answers to a prompt or question, most likely first.
constexpr std::array<const char*, 6> kAnswers = {"completion", "response", "output", "answer", "solution", "chosen"};

// Keys of a system message beside a conversation.
constexpr std::array<const char*, 2> kSystem = {"system", "system_prompt"};

// "no keys", or "the keys 'a', 'b'", with at most eight of them.
std::string some_keys(const Json& row) {
  std::string text;
  int shown = 0;
  for (const auto& [key, value] : row.items()) {
    text += (shown == 0 ? "the keys " : ", ") + (shown < 8 ? quote_name(key.substr(0, 40)) : "...");
    if (++shown > 8) break;
  }
  return shown == 0 ? "no keys" : text;
}

class RowReader {
 public:
  // `part`: the row is what a request becomes.
  RowReader(const Json& row, const std::string& where, bool part = false) : row_(row), where_(where), part_(part) {}

  PromptRow read(const std::string& column) {
    if (!column.empty()) {
      if (!has_value(row_, column)) throw InputError(where_ + ": the row has no column " + quote_name(column));
      take(column, true);
    } else if (!read_first([&](const char* key) { return full(key); }) &&
               !read_first([&](const char* key) { return has_value(row_, key); })) {
      throw InputError(where_ + ": the row has " + some_keys(row_) + ", and none of " + kPromptKeys);
    }
    finish();
    return std::move(out_);
  }

 private:
  bool full(const char* key) const { return says(row_, key); }
  const Json& at(const std::string& key) const { return json_member(row_, key); }

  template <class There>
  bool read_first(const There& there) {
    for (const char* key : {"input_ids", "messages", "conversations", "conversation", "text"}) {
      if (there(key)) return take(key, false);
    }
    if (there("prompt")) return take_prompt();
    if (there("chosen")) return take_dialog("chosen");
    for (const char* key : {"instruction", "question", "query", "problem"}) {
      if (there(key)) return take_instruction(key);
    }
    if (there("content")) return take("content", false);
    for (const char* key : {"body", "request", "params"}) {
      if (there(key)) return take_request(key);
    }
    return there("input") && at("input").is_array() && as_conversation(at("input"), where_) && take_request("");
  }

  void used(const std::string& key) { used_.push_back(key); }

  bool take_text(const std::string& key) { return set_text(key, json_string(row_, key.c_str(), where_)); }

  bool set_text(const std::string& key, const std::string& text) {
    used(key);
    out_.kind = key == "prompt" ? "prompt" : "text";
    out_.reading = "'" + key + "'";
    out_.text = text;
    if (text.empty()) out_.empty = key;
    return true;
  }

  bool take_messages(const std::string& key, Json messages) {
    used(key);
    out_.kind = "messages";
    out_.reading = "'" + key + "'";
    if (messages.empty()) out_.empty = key;
    out_.messages = std::move(messages);
    if (has_blocks(out_.messages)) read_blocks();
    return true;
  }

  void read_blocks() {
    out_.api = Api::kMessages;
    out_.messages = messages_of_blocks(out_.messages, where_);
  }

  bool take_ids(const std::string& key) {
    used(key);
    out_.kind = "input_ids";
    out_.reading = "'" + key + "'";
    out_.ids = json_array(row_, key.c_str(), where_);
    if (out_.ids.empty()) out_.empty = key;
    if (has_value(row_, "attention_mask")) {
      used("attention_mask");
      out_.mask = json_array(row_, "attention_mask", where_);
    }
    for (const char* beside : {"position_ids", "token_type_ids"}) {
      if (has_value(row_, beside)) out_.others[beside] = at(beside);
    }
    return true;
  }

  // Takes a key that holds a complete prompt. `any`: the value's type decides; otherwise the key does.
  bool take(const std::string& key, bool any) {
    const Json& value = at(key);
    if (key == "input_ids" || (any && value.is_array() && !value.empty() && value.front().is_number())) {
      return take_ids(key);
    }
    if (any && value.is_object() && !has_value(value, "role") && !has_value(value, "from")) return take_request(key);
    const bool request = at("thinking").is_object() || at("output_config").is_object() || at("reasoning").is_object() ||
                         (!part_ && (changes_tools(row_) || has_schemas(row_)));
    if (key == "messages" && request) return take_request("");
    if (key == "messages" || key == "conversations" || key == "conversation" || (any && value.is_structured())) {
      return take_messages(key, value == Json("") ? Json::array() : need_conversation(value, key, where_));
    }
    if (any && value.is_string()) {
      if (std::optional<Json> messages = as_conversation(value, where_))
        return take_messages(key, *std::move(messages));
    }
    return take_text(key);
  }

  // "prompt" or "chosen": a text or a conversation, with a separate answer.
  bool take_prompt() {
    if (!at("prompt").is_string() && !at("prompt").is_structured()) return take_text("prompt");  // reports its type
    const auto answer = std::find_if(kAnswers.begin(), kAnswers.end(), [&](const char* key) {
      return full(key) && (at(key).is_string() || as_conversation(at(key), where_));
    });
    std::optional<Json> asked = as_conversation(at("prompt"), where_);
    if (answer == kAnswers.end()) {
      if (asked) return take_messages("prompt", *std::move(asked));
      if (at("prompt").is_array() && at("prompt").size() == 1 && at("prompt")[0].is_string()) {  // from a request
        return set_text("prompt", at("prompt")[0].get<std::string>());
      }
      const bool ids = at("prompt").is_array() && !at("prompt").empty() && at("prompt").front().is_number();
      return ids ? take_ids("prompt") : take_text("prompt");
    }
    const std::string reading = std::string("'prompt' with '") + *answer + "'";
    std::optional<Json> answered = as_conversation(at(*answer), where_);
    if (!asked && !answered) {
      take_text("prompt");
      used(*answer);
      *out_.text += json_string(row_, *answer, where_);
      out_.empty.clear();
      out_.reading = reading;
      return true;
    }
    // A conversation that starts with the question already includes the prompt.
    const std::string first = answered ? json_string(answered->front(), "role", where_) : "";
    if (answered && (first == "user" || first == "system" || first == "developer")) {
      used("prompt");
      return take_messages(*answer, *std::move(answered));
    }
    Json messages = asked ? *std::move(asked) : Json::array({message("user", "prompt")});
    if (answered) {
      for (Json& turn : *answered) messages.push_back(std::move(turn));
    } else {
      messages.push_back(message("assistant", *answer));
    }
    used(*answer);
    take_messages("prompt", std::move(messages));
    out_.reading = reading;
    return true;
  }

  bool take_dialog(const std::string& key) {
    std::optional<Json> messages = as_conversation(at(key), where_);
    return messages ? take_messages(key, *std::move(messages)) : take_text(key);
  }

  Json message(const char* role, const std::string& key) {
    return {{"role", role}, {"content", json_string(row_, key.c_str(), where_)}};
  }

  // Question and answer datasets: instruction (with input or context) and output, as a two-message conversation.
  bool take_instruction(const std::string& key) {
    Json asked = message("user", key);
    std::string reading = "'" + key + "'";
    for (const char* more : {"input", "context"}) {
      if (!full(more) || !at(more).is_string()) continue;
      asked["content"] = asked["content"].get<std::string>() + "\n\n" + at(more).get<std::string>();
      used(more);
      reading += std::string(" and '") + more + "'";
    }
    Json messages = Json::array();
    if (full("history")) {
      used("history");
      for (const Json& pair : json_array(row_, "history", where_)) {
        if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
          throw InputError(where_ + ": 'history' holds something else than pairs of texts");
        }
        messages.push_back({{"role", "user"}, {"content", pair[0]}});
        messages.push_back({{"role", "assistant"}, {"content", pair[1]}});
      }
    }
    messages.push_back(std::move(asked));
    const auto answer = std::find_if(kAnswers.begin(), kAnswers.end(),
                                     [&](const char* name) { return full(name) && at(name).is_string(); });
    if (answer != kAnswers.end()) {
      messages.push_back(message("assistant", *answer));
      used(*answer);
      reading += std::string(" with '") + *answer + "'";
    }
    take_messages(key, std::move(messages));
    out_.reading = reading;
    return true;
  }

  // A client's request to a server, in a key or as the whole row (empty key).
  bool take_request(const std::string& key) {
    Json body = key.empty() ? row_ : at(key);
    const std::string place = key.empty() ? where_ : where_ + ": '" + key + "'";
    if (body.is_string()) body = parse_python_json(body.get<std::string>(), place);
    const ApiRequest request = read_request(body, place);
    out_ = RowReader(request.row, place, true).read("");
    if (out_.kind == "messages") {
      if (request.api == Api::kMessages && out_.api == Api::kChat) read_blocks();
      if (request.api != Api::kChat) out_.api = request.api;
      // Other than for rows of a data set, it comes before a system message of the conversation.
      if (!request.system.empty()) put_system(request.system);
    }
    out_.effort = request.effort;
    out_.reading = "'" + request.part + "'" + (key.empty() ? "" : " in '" + key + "'");
    out_.unread = request.unread;
    used_.clear();
    for (const auto& [name, value] : row_.items()) {
      if (key.empty() || name == key) used(name);
    }
    served_ = true;
    return true;
  }

  void put_system(const std::string& text) {
    out_.messages.insert(out_.messages.begin(), Json{{"role", "system"}, {"content", text}});
  }

  // A text, or a list of its parts, beside a conversation without a system message becomes its first message.
  void add_system() {
    if (out_.messages.empty()) return;
    const bool lists = std::any_of(out_.messages.begin(), out_.messages.end(),
                                   [](const Json& message) { return json_member(message, "content").is_array(); });
    if (lists && full("system") && out_.api == Api::kChat) read_blocks();
    if (out_.messages.empty()) return;
    const Json role = json_member(out_.messages.front(), "role");
    for (const char* key : kSystem) {
      if (!full(key) || !(at(key).is_string() || at(key).is_array())) continue;
      const std::string text = system_text(at(key));
      used(key);
      if (out_.api != Api::kMessages && (role == "system" || role == "developer")) {
        if (json_member(out_.messages.front(), "content") != Json(text)) out_.unread.emplace_back(key);
        continue;
      }
      if (text.empty()) continue;
      put_system(text);
      out_.reading += std::string(" with '") + key + "'";
      return;
    }
  }

  void finish() {
    const bool chat = out_.kind == "messages";
    if (chat && !served_) add_system();
    if (chat && out_.messages.empty() && out_.empty.empty()) out_.empty = "messages";
    if (!served_) out_.extras = Json::object();
    for (const auto& [key, value] : row_.items()) {
      if (std::find(used_.begin(), used_.end(), key) != used_.end() || !has_value(row_, key)) continue;
      const bool content = is_one_of(key, kContentKeys);
      if (chat && !served_ && !content) {
        out_.extras[key] = value;
      } else if (says(row_, key) && (!served_ || content || value.is_structured())) {
        out_.unread.push_back(key);
      }
    }
  }

  const Json& row_;
  const std::string where_;
  const bool part_;
  std::vector<std::string> used_;
  bool served_ = false;  // out_ comes from a request, including its extras
  PromptRow out_;
};

}  // namespace

PromptRow read_prompt_row(const Json& row, const std::string& column, const std::string& where) {
  if (!row.is_object()) {
    throw InputError(where + ": the row is " + row.type_name() + ", expected a JSON object with " + kPromptKeys);
  }
  return RowReader(row, where).read(column);
}

}  // namespace oscar
