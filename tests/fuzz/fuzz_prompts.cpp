#include <unistd.h>

#include <algorithm>

#include "base/errors.h"
#include "fuzz/fuzz_target.h"
#include "text/chat_template.h"
#include "text/prompt_file.h"
#include "text/prompts.h"
#include "text/row_json.h"

namespace oscar::fuzz {
namespace {

// A tokenizer of bytes, and a template that looks at every part of a conversation.
const Tokenizer& tokenizer() {
  static const Tokenizer made = Tokenizer::from_json(
      R"({"version":"1.0","normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,)"
      R"("model":{"type":"BPE","unk_token":"?","fuse_unk":true,"vocab":{"?":0,"a":1,"{":2},"merges":[]}})",
      "tokenizer.json");
  return made;
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("oscar-fuzz-prompts." + std::to_string(::getpid()))) {
    make_directory(path_);
    write_file_atomic(path_ / "chat_template.jinja",
                      "{{ tools|tojson(indent=1) }}{{ documents|tojson }}{{ level }}{% for m in messages %}{{ m }}"
                      "{% for c in m.tool_calls %}{% for k, v in c.function.arguments|items %}{{ k ~ v }}{% endfor %}"
                      "{% endfor %}{% if m.content is string %}{{ m.content|trim }}{% else %}"
                      "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}");
  }
  ~Folder() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

const ChatTemplate& chat() {
  static const ChatTemplate made = RowSettings{}.chat_template(Folder().path());
  return made;
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      R"({"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}, {"role": "assistant", )"
      R"("content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]}, )"
      R"({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "b"}]}]}], )"
      R"("system": [{"type": "text", "text": "s"}], "tools": [{"name": "f", "input_schema": {}}, {"type": "namespace", "name": "n", "tools": []}]})",
      R"({"body": {"input": [{"role": "assistant", "content": [{"text": "a"}]}, {"type": "function_call", "name": "f", "arguments": "{\"a\": 1}"}, )"
      R"({"type": "reasoning", "summary": [{"text": "r"}]}, {"type": "function_call_output", "output": "o"}], "instructions": "i", )"
      R"("reasoning": {"effort": "low"}}})",
      R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": "[{\"name\": \"f\"}]"}], "thinking": {"type": "disabled"}})",
      "{\"text\": \"a\"}\n\n{\"prompt\": \"caf\\u00e9\", \"source\": 3}\r\n{\"input_ids\": [1, 2, 0]}\n",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": )"
      R"([{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null, "\n"]}}}]}, )"
      R"({"role": "tool", "content": "3"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": )"
      R"({"type": "object", "properties": {"x": {"type": "array"}}}}}], "chat_template_kwargs": {"level": 1e-7}})",
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}], "level": 2, )"
      R"("documents": [{"title": "t", "text": "d"}], "add_generation_prompt": true, "tools": "[{\"a\": 1}]"})",
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"function_call\", \"value\": "
      "\"{\\\"name\\\": \\\"f\\\"}\"}], \"system\": \"a\"}\n{\"prompt\": \"a\", \"completion\": \"a\", \"x\": NaN}\n"
      "{\"input_ids\": [1, 2], \"attention_mask\": [0, 1], \"position_ids\": [0, 0]}\n{\"instruction\": \"a\", "
      "\"input\": "
      "\"a\", \"output\": \"a\", \"history\": [[\"a\", \"a\"]]}\n{\"body\": {\"messages\": [{\"role\": \"user\", "
      "\"content\": \"a\"}]}, \"text\": \"a\", \"text\": null}\n",
      std::string(
          "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56\x2a\x49\xad\x28\x51\xb2\x52\x50\x4a\x54\xaa\xe5\x02\x00"
          "\xbd\xd2\x2a\x20\x0e\x00\x00\x00",
          34)};
}

void read_input(std::string_view bytes) {
  constexpr std::int64_t kVocabulary = 3;
  std::string expanded;
  if (is_gzip(bytes)) {
    expanded = gunzip(bytes, "p.jsonl.gz", 1 << 20);
    bytes = expanded;
  }
  const PromptSet lenient = parse_prompt_rows(bytes, "p.jsonl", "p.jsonl", tokenizer(), chat(), kVocabulary, {true});
  const std::size_t lines = static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n')) +
                            (bytes.empty() || bytes.back() != '\n' ? 1 : 0);
  require(lenient.prompts.size() + lenient.skipped.size() == lines, "every line is used or listed");
  for (const Prompt& prompt : lenient.prompts) {
    require(!prompt.ids.empty(), "a prompt has tokens");
    for (const std::int32_t id : prompt.ids) require(id >= 0 && id < kVocabulary, "ids are in the vocabulary");
  }
  require((lenient.bad_rows > 0) == !lenient.first_bad.empty(), "the first bad row is told");
  std::int64_t read = 0;
  for (const auto& [name, reading] : lenient.readings) {
    require(reading.rows > 0 && reading.unread.size() <= 65, "readings are counted, their keys within bounds");
    read += reading.rows;
  }
  require(read >= std::ssize(lenient.prompts), "every prompt was read somehow");
  // As one file of JSON values: what is split lies in the text, in order.
  try {
    const char* behind = bytes.data();
    for (const std::string_view value : split_json_values(bytes, "p.json")) {
      require(!value.empty() && value.data() >= behind, "values are parts of the text, one behind the other");
      behind = value.data() + value.size();
    }
    require(behind <= bytes.data() + bytes.size(), "and none leaves it");
  } catch (const InputError&) {
  }
  // Without the option the same rows, or the first bad one as the reason.
  try {
    const PromptSet strict = parse_prompt_rows(bytes, "p.jsonl", "p.jsonl", tokenizer(), chat(), kVocabulary);
    require(lenient.bad_rows == 0 && strict.sha256 == lenient.sha256, "the same rows are read");
  } catch (const InputError& e) {
    require(e.what() == lenient.first_bad, "the first bad row is the reason");
    throw;
  }
}

}  // namespace oscar::fuzz
