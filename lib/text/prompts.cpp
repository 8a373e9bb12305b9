#include "text/prompts.h"

#include <algorithm>
#include <bit>

#include "base/errors.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "text/jinja/from_json.h"
#include "text/prompt_file.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

constexpr const char* kKinds[] = {"text", "messages", "prompt", "input_ids"};
constexpr const char* kKindList = "\"text\", \"messages\", \"prompt\" or \"input_ids\"";

class Loader {
 public:
  Loader(const LazyTokenizer& tokenizer, const ChatTemplate& chat, std::int64_t vocabulary,
         const PromptOptions& options)
      : tokenizer_(tokenizer), chat_(chat), vocabulary_(vocabulary), options_(options) {}

  void load(const fs::path& path) {
    const PromptFile file = read_prompt_file(path);
    if (file.rows) {
      load_rows(file.content, file.where, file.name);
    } else {
      load_document(file);
    }
  }

  void load_rows(std::string_view content, const std::string& where, const std::string& name) {
    std::size_t line = 0;
    for (std::size_t begin = 0; begin < content.size();) {
      if (interrupt_requested()) throw InterruptedError("interrupted while prompts were read; run the command again");
      const std::size_t end = std::min(content.find('\n', begin), content.size());
      const std::string_view row = content.substr(begin, end - begin);
      begin = end + 1;
      ++line;
      const std::string suffix = ":" + std::to_string(line);
      load_line(row, where + suffix, name + suffix);
    }
  }

  void only_ids() { only_ids_ = true; }  // rows of another kind are refused

  // `files` names what was read.
  PromptSet finish(const std::string& files) {
    if (set_.prompts.empty()) {
      std::string detail = "there are no rows";
      if (!set_.skipped.empty()) {
        const SkippedRow& first = set_.skipped[0];
        detail = std::to_string(set_.skipped.size()) + " rows were skipped, the first, " + first.source +
                 ", for: " + first.reason + (set_.bad_rows > 0 ? "; the first bad one: " + set_.first_bad : "");
      }
      throw InputError("no usable prompt in " + files + " (" + detail + "); pass at least one row with " + kKindList);
    }
    set_.sha256 = prompts_sha256(set_.prompts);
    return std::move(set_);
  }

 private:
  void load_document(const PromptFile& file) {
    const std::size_t bad = find_invalid_utf8(file.content);
    if (bad != std::string::npos) {
      throw InputError(file.where + ": is not valid UTF-8 at byte " + std::to_string(bad) +
                       "; convert the file to UTF-8");
    }
    if (file.content.empty()) return skip(file.name, "empty file");
    where_ = file.where;
    add(file.name, "text", tokenizer_.get().encode(file.content, true));
  }

  void load_line(std::string_view row, const std::string& where, const std::string& source) {
    where_ = where;
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) return skip(source, "blank line");
    try {
      const Json json = parse_json(row, where_);
      if (json.is_object() && json.contains("messages") && jinja::has_huge_integer(row)) {
        throw InputError(where_ + ": the row holds a whole number of more than 64 bits, which is not supported");
      }
      load_row(json, source);
    } catch (const InputError& e) {
      const std::string message = e.what();  // with the place in front, whoever throws it
      const std::string placed = message.starts_with(where_ + ":") ? message : where_ + ": " + message;
      if (!options_.skip_bad_rows) throw InputError(placed);
      if (set_.bad_rows++ == 0) set_.first_bad = placed;
      skip(source, "bad row");
    }
  }

  void load_row(const Json& row, const std::string& source) {
    if (!row.is_object()) {
      throw InputError(where_ + ": the row is " + row.type_name() + ", expected a JSON object with " + kKindList);
    }
    const char* kind = nullptr;
    for (const char* candidate : kKinds) {
      if (!row.contains(candidate)) continue;
      if (kind != nullptr) {
        throw InputError(where_ + ": the row has both '" + kind + "' and '" + candidate + "', expected one of them");
      }
      kind = candidate;
    }
    if (kind == nullptr) throw InputError(where_ + ": the row has none of " + kKindList);
    const std::string name = kind;
    if (only_ids_ && name != "input_ids") {
      throw InputError(where_ + ": the row has '" + name + "', expected 'input_ids' as in the first row");
    }
    if (name == "messages") return load_messages(row, source);
    if (name == "input_ids") return load_ids(row, source);
    const std::string text = json_string(row, kind, where_);
    if (text.empty()) return skip(source, "empty '" + name + "'");
    add(source, kind, tokenizer_.get().encode(text, true));
  }

  // An array of objects, or null where the key is absent. Some datasets keep such lists as JSON text.
  Json list_of_objects(const Json& row, const char* key) const {
    const auto found = row.find(key);
    if (found == row.end() || found->is_null()) return nullptr;
    Json list = found->is_string() ? parse_json(found->get<std::string>(), where_ + ": '" + key + "'") : *found;
    if (list.is_null()) return nullptr;
    if (!list.is_array()) {
      throw InputError(where_ + ": '" + key + "' is " + list.type_name() + ", expected an array of objects");
    }
    for (const Json& entry : list) {
      if (!entry.is_object()) {
        throw InputError(where_ + ": '" + key + "' holds " + entry.type_name() + ", expected an array of objects");
      }
    }
    return list;
  }

  void load_messages(const Json& row, const std::string& source) {
    ChatInput input;
    input.messages = json_array(row, "messages", where_);
    input.tools = list_of_objects(row, "tools");
    input.documents = list_of_objects(row, "documents");
    for (const Json& message : input.messages) {
      if (!message.is_object()) {
        throw InputError(where_ + ": a message is " + message.type_name() + ", expected an object");
      }
      json_string(message, "role", where_ + ": a message");
    }
    if (input.messages.empty()) return skip(source, "empty 'messages'");
    // A conversation that ends with a question is what the model would be asked to answer.
    const bool answered = input.messages.back()["role"] == "assistant";
    input.add_generation_prompt = json_bool(row, "add_generation_prompt", where_, !answered);
    input.variables = template_variables(row);
    if (chat_.asks_for_date()) set_.date = chat_.date();
    add(source, "messages",
        tokenizer_.get().encode(chat_.render(input), false));  // the template wrote BOS where it belongs
  }

  // Keyword arguments of apply_chat_template: the row's other keys, and those of chat_template_kwargs.
  Json template_variables(const Json& row) const {
    const auto known = [](const std::string& key) {
      return key == "messages" || key == "tools" || key == "documents" || key == "add_generation_prompt" ||
             key == "chat_template_kwargs";
    };
    Json variables = Json::object();
    const auto add_all = [&](const Json& members, bool must_be_variables) {
      for (const auto& [key, value] : members.items()) {
        if (must_be_variables && (known(key) || key == "chat_template")) {
          throw InputError(where_ + ": 'chat_template_kwargs' holds '" + key + "', which is no variable of a template");
        }
        if (key == "continue_final_message" && value != Json(false) && !value.is_null()) {
          throw InputError(where_ + ": 'continue_final_message' is not supported; pass {\"text\": ...} rows");
        }
        if (!known(key)) variables[key] = value;
      }
    };
    add_all(row, false);
    const auto more = row.find("chat_template_kwargs");
    if (more != row.end() && !more->is_null()) add_all(json_object(row, "chat_template_kwargs", where_), true);
    return variables;
  }

  void load_ids(const Json& row, const std::string& source) {
    const Json& list = json_array(row, "input_ids", where_);
    if (list.empty()) return skip(source, "empty 'input_ids'");
    std::vector<std::int32_t> ids;
    ids.reserve(list.size());
    for (const Json& id : list) {
      if (!id.is_number_integer()) {
        throw InputError(where_ + ": 'input_ids' holds " + id.dump().substr(0, 40) + ", expected integers");
      }
      const bool huge = id.is_number_unsigned() && id.get<std::uint64_t>() > static_cast<std::uint64_t>(INT32_MAX);
      const std::int64_t value = huge ? INT64_MAX : id.get<std::int64_t>();
      if (value < 0 || value >= vocabulary_ || huge) {
        throw InputError(where_ + ": 'input_ids' holds " + id.dump() + ", outside the model's vocabulary of " +
                         std::to_string(vocabulary_));
      }
      ids.push_back(static_cast<std::int32_t>(value));
    }
    add(source, "input_ids", std::move(ids));
  }

  void add(const std::string& source, const std::string& kind, std::vector<std::int32_t> ids) {
    if (ids.empty()) return skip(source, "no tokens");
    const std::int32_t highest = *std::max_element(ids.begin(), ids.end());
    if (highest >= vocabulary_) {
      throw InputError(where_ + ": the tokenizer gives the id " + std::to_string(highest) +
                       ", outside the model's vocabulary of " + std::to_string(vocabulary_) +
                       "; the tokenizer belongs to another model");
    }
    set_.prompts.push_back({source, kind, std::move(ids)});
  }
  void skip(const std::string& source, const std::string& reason) { set_.skipped.push_back({source, reason}); }

  const LazyTokenizer& tokenizer_;
  const ChatTemplate& chat_;
  const std::int64_t vocabulary_;
  const PromptOptions options_;
  bool only_ids_ = false;
  std::string where_;  // file and line of the row that is being read
  PromptSet set_;
};

}  // namespace

PromptSet load_prompts(const std::vector<fs::path>& files, const LazyTokenizer& tokenizer, const ChatTemplate& chat,
                       std::int64_t vocabulary, const PromptOptions& options) {
  require_different_files(files);
  Loader loader(tokenizer, chat, vocabulary, options);
  for (const fs::path& file : files) loader.load(file);
  const std::string first = files.empty() ? "an empty list of files" : files[0] == "-" ? "stdin" : files[0].string();
  return loader.finish(first + (files.size() > 1 ? " and " + std::to_string(files.size() - 1) + " more files" : ""));
}

PromptSet parse_prompt_rows(std::string_view content, const std::string& where, const std::string& name,
                            const LazyTokenizer& tokenizer, const ChatTemplate& chat, std::int64_t vocabulary,
                            const PromptOptions& options) {
  Loader loader(tokenizer, chat, vocabulary, options);
  loader.load_rows(content, where, name);
  return loader.finish(where);
}

namespace {

bool begins_with_ids(const PromptFile& file) {
  const std::size_t begin = file.content.find_first_not_of(" \t\r\n");
  if (!file.rows || begin == std::string::npos) return false;
  const std::string_view content = file.content;
  try {
    const Json row = parse_json(content.substr(begin, content.find('\n', begin) - begin), file.where);
    return row.is_object() && row.contains("input_ids");
  } catch (const InputError&) {
    return false;  // a document that is no JSON, whatever its name
  }
}

}  // namespace

std::optional<std::vector<std::int32_t>> load_id_rows(const fs::path& file, std::int64_t vocabulary) {
  std::string name = file.filename().string();
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  if (!name.ends_with(".jsonl")) return std::nullopt;
  const PromptFile rows = read_prompt_file(file);
  if (!begins_with_ids(rows)) return std::nullopt;
  const LazyTokenizer none(fs::path{});
  const ChatTemplate chat;
  Loader loader(none, chat, vocabulary, {});
  loader.only_ids();
  loader.load_rows(rows.content, rows.where, rows.name);
  std::vector<std::int32_t> ids;
  for (const Prompt& row : loader.finish(rows.where).prompts) ids.insert(ids.end(), row.ids.begin(), row.ids.end());
  return ids;
}

std::vector<std::int32_t> load_text(const fs::path& file, const Tokenizer& tokenizer) {
  const std::string text = read_document(file);
  const std::size_t bad = find_invalid_utf8(text);
  if (bad != std::string::npos) {
    throw InputError(file.string() + ": is not valid UTF-8 at byte " + std::to_string(bad) +
                     "; convert the file to UTF-8");
  }
  std::vector<std::int32_t> ids = tokenizer.encode(text, true);
  if (ids.empty()) throw InputError(file.string() + ": holds no text");
  return ids;
}

}  // namespace oscar
