#include "text/prompts.h"

#include <algorithm>
#include <bit>

#include "base/errors.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "text/unicode.h"

namespace oscar {
namespace {

constexpr const char* kKinds[] = {"text", "messages", "prompt", "input_ids"};
constexpr const char* kKindList = "\"text\", \"messages\", \"prompt\" or \"input_ids\"";

class Loader {
 public:
  Loader(const Tokenizer& tokenizer, const ChatTemplate& chat, std::int64_t vocabulary)
      : tokenizer_(tokenizer), chat_(chat), vocabulary_(vocabulary) {}

  void load(const fs::path& file) {
    const std::string extension = file.extension().string();
    if (extension == ".jsonl") {
      load_rows(file);
    } else if (extension == ".txt") {
      load_document(file);
    } else {
      throw InputError(file.string() + ": unknown kind of prompt file '" + extension +
                       "', expected .jsonl (one JSON row a line) or .txt (one document)");
    }
  }

  PromptSet finish() {
    Sha256 hash;
    const auto number = [&](std::uint64_t value, int bytes) {  // little-endian on every machine
      unsigned char out[8];
      for (int i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
      hash.update(out, static_cast<std::size_t>(bytes));
    };
    for (const Prompt& prompt : set_.prompts) {
      number(prompt.ids.size(), 8);
      for (const std::int32_t id : prompt.ids) number(static_cast<std::uint32_t>(id), 4);
    }
    set_.sha256 = hash.hex();
    return std::move(set_);
  }

 private:
  void load_document(const fs::path& file) {
    const std::string text = read_file(file);
    const std::string source = file.filename().string();
    const std::size_t bad = find_invalid_utf8(text);
    if (bad != std::string::npos) {
      throw InputError(file.string() + ": is not valid UTF-8 at byte " + std::to_string(bad) +
                       "; convert the file to UTF-8");
    }
    if (text.empty()) return skip(source, "empty file");
    add(source, "text", tokenizer_.encode(text, true));
  }

  void load_rows(const fs::path& file) {
    const std::string content = read_file(file);
    std::size_t line = 0;
    for (std::size_t begin = 0; begin < content.size();) {
      if (interrupt_requested()) throw InterruptedError("interrupted while prompts were read; run the command again");
      const std::size_t end = std::min(content.find('\n', begin), content.size());
      const std::string_view row = std::string_view(content).substr(begin, end - begin);
      begin = end + 1;
      ++line;
      where_ = file.string() + ":" + std::to_string(line);
      const std::string source = file.filename().string() + ":" + std::to_string(line);
      if (row.find_first_not_of(" \t\r") == std::string_view::npos) {
        skip(source, "blank line");
      } else {
        load_row(parse_json(row, where_), source);
      }
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
    if (name == "messages") return load_messages(row, source);
    if (name == "input_ids") return load_ids(row, source);
    const std::string text = json_string(row, kind, where_);
    if (text.empty()) return skip(source, "empty '" + name + "'");
    add(source, kind, tokenizer_.encode(text, true));
  }

  void load_messages(const Json& row, const std::string& source) {
    std::vector<ChatMessage> messages;
    for (const Json& entry : json_array(row, "messages", where_)) {
      if (!entry.is_object()) throw InputError(where_ + ": a message is " + entry.type_name() + ", expected an object");
      messages.push_back({json_string(entry, "role", where_), json_string(entry, "content", where_)});
    }
    if (messages.empty()) return skip(source, "empty 'messages'");
    // A conversation that ends with a question is what the model would be asked to answer.
    std::string text;
    try {
      text = chat_.render(messages, messages.back().role != "assistant");
    } catch (const InputError& e) {
      throw InputError(where_ + ": " + e.what());
    }
    add(source, "messages", tokenizer_.encode(text, false));  // the template wrote BOS where it belongs
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
      throw InputError(source + ": the tokenizer gives the id " + std::to_string(highest) +
                       ", outside the model's vocabulary of " + std::to_string(vocabulary_) +
                       "; the tokenizer belongs to another model");
    }
    set_.prompts.push_back({source, kind, std::move(ids)});
  }
  void skip(const std::string& source, const std::string& reason) { set_.skipped.push_back({source, reason}); }

  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  const std::int64_t vocabulary_;
  std::string where_;  // file and line of the row that is being read
  PromptSet set_;
};

}  // namespace

PromptSet load_prompts(const std::vector<fs::path>& files, const Tokenizer& tokenizer, const ChatTemplate& chat,
                       std::int64_t vocabulary) {
  Loader loader(tokenizer, chat, vocabulary);
  for (const fs::path& file : files) loader.load(file);
  PromptSet set = loader.finish();
  if (set.prompts.empty()) {
    const std::string detail = set.skipped.empty()
                                   ? "there are no rows"
                                   : std::to_string(set.skipped.size()) + " rows were skipped, the first, " +
                                         set.skipped[0].source + ", for: " + set.skipped[0].reason;
    throw InputError("no usable prompt in " +
                     (files.empty() ? std::string("an empty list of files") : files[0].string()) +
                     (files.size() > 1 ? " and " + std::to_string(files.size() - 1) + " more files" : "") + " (" +
                     detail + "); pass at least one row with " + kKindList);
  }
  return set;
}

std::vector<std::int32_t> load_text(const fs::path& file, const Tokenizer& tokenizer) {
  const std::string text = read_file(file);
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
