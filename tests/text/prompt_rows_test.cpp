// Rows of other tools: which part of them is read, in which order, and what is told of the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "base/json_rules.h"
#include "support/message_of.h"
#include "support/paths.h"
#include "support/temp_directory.h"
#include "text/prompts.h"
#include "text/row_json.h"

namespace oscar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const fs::path kModel = fs::path(OSCAR_SOURCE_DIR) / "sample_data/tiny-qwen3";

class PromptRows : public ::testing::Test {
 protected:
  PromptSet read(const std::string& rows, const PromptOptions& options = {}) {
    return parse_prompt_rows(rows, "p.jsonl", "p.jsonl", tokenizer_, chat_, 8192, options);
  }
  std::string text(const std::string& row, const PromptOptions& options = {}) {
    return tokenizer_.decode(read(row, options).prompts.at(0).ids, false);
  }
  std::string fault(const std::string& row) {
    return message_of<InputError>([&] { read(row); });
  }
  PromptSet file(const std::string& name, const std::string& content) {
    write_file_atomic(folder_ / name, content);
    return load_prompts({folder_ / name}, tokenizer_, chat_, 8192);
  }

  // One that writes messages of users, systems and assistants, calls, and the names of tools.
  void take_agents_template() {
    write_file_atomic(
        folder_ / "chat_template.jinja",
        "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}<{{ m.role }}>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}({{ c.function.name }}{{ c.function.arguments.a }}){% endfor %}"
        "{% endif %}{% endfor %}{% for t in tools or [] %}[{{ t.function.name }}{{ (t.function.parameters or {}).type "
        "}}]{% endfor %}");
    chat_ = RowSettings{}.chat_template(folder_.path());
  }

  TempDirectory folder_;
  Tokenizer tokenizer_ = Tokenizer::from_file(kModel / "tokenizer.json");
  ChatTemplate chat_ = ChatTemplate::from_model(kModel);
};

constexpr const char* kTwo = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n";
constexpr const char* kAsked = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";

TEST_F(PromptRows, Conversations) {
  for (
      const char* row : {
          R"({"prompt": "q", "prompt_id": "7", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
          R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})",
          R"({"conversation": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
          R"({"conversation": [{"input": "q", "output": "a"}]})",
          R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]})",
          R"({"prompt": [{"role": "user", "content": "q"}], "completion": "a"})",
          R"({"prompt": "q", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "rejected": []})",
          R"({"prompt": "q", "chosen": [{"role": "assistant", "content": "a"}]})",
          R"({"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "rejected": []})",
          R"({"messages": "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]"})",
          R"({"messages": ["{\"role\": \"user\", \"content\": \"q\"}", "{\"role\": \"assistant\", \"content\": \"a\"}"]})",
          R"({"instruction": "q", "input": "", "output": "a"})",
          R"({"question": "q", "answer": "a"})",
          R"({"body": {"model": "m", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}})",
          R"({"text": null, "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": ""})",
          R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": " \n", "documents": "  "})",
          R"({"text": NaN, "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
          R"({"messages": [], "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})",
          R"({"conversations": [{"role": "user", "value": "q"}, {"role": "assistant", "value": "a"}]})",
          R"({"messages": [{"role": "user", "text": "q"}, {"role": "assistant", "text": "a"}]})",
          R"({"body": {"input": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}})",
      }) {
    EXPECT_EQ(text(row), kTwo) << row;
  }
  EXPECT_EQ(text(R"({"messages": {"role": "user", "content": "q"}})"), kAsked);
  EXPECT_EQ(text(R"({"instruction": "q"})"), kAsked);
  EXPECT_EQ(text(R"({"prompt": "[{\"role\": \"user\", \"content\": \"q\"}]"})"), kAsked);
  EXPECT_EQ(text(R"({"instruction": "q", "input": "x", "output": "a"})"),
            "<|im_start|>user\nq\n\nx<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n");
  EXPECT_EQ(text(R"({"system": "s", "conversations": [{"from": "human", "value": "q"}]})"),
            std::string("<|im_start|>system\ns<|im_end|>\n") + kAsked);
  for (
      const char* row : {
          R"({"conversation": [{"system": "s", "input": "q", "output": "a"}]})",
          R"({"system_prompt": "s", "question": "q", "response": "a"})",
          R"({"system": "s", "system_prompt": "t", "question": "q", "response": "a"})",
          R"({"system": "s", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
          R"({"body": {"instructions": "s", "input": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}})",
      }) {
    EXPECT_EQ(text(row), std::string("<|im_start|>system\ns<|im_end|>\n") + kTwo) << row;
  }
  EXPECT_EQ(text(R"({"body": {"model": "m", "input": "q"}})"), kAsked);
  EXPECT_EQ(text(R"({"instruction": "q", "history": [["h", "i"]]})"),
            std::string("<|im_start|>user\nh<|im_end|>\n<|im_start|>assistant\ni<|im_end|>\n") + kAsked);
  EXPECT_THAT(fault(R"({"conversations": [{"from": "martian", "value": "q"}]})"),
              HasSubstr("p.jsonl:1: a turn is from 'martian', expected human, gpt"));
  EXPECT_THAT(fault(R"({"conversations": [{"from": "human"}]})"), HasSubstr("has no 'value'"));
  EXPECT_THAT(fault(R"({"messages": 3})"), HasSubstr("'messages' is number, expected an array of messages"));
}

// Agents' logs. tests/python/test_served_prompts.py compares many with vLLM.
TEST_F(PromptRows, LogsOfOtherInterfaces) {
  take_agents_template();
  const Json call = {{"name", "f"}, {"arguments", {{"a", 1}}}};
  for (const Json& calls : {call, Json(call.dump()), Json(Json::array({call}).dump()), Json::array({call.dump()}),
                            Json(Json::array({{{"function", call.dump()}}}).dump()),
                            Json::array({Json{{"id", "1"}, {"function", call.dump()}}})}) {
    EXPECT_EQ(text(R"({"messages": [{"role": "assistant", "content": "x", "tool_calls": )" + calls.dump() + "}]}"),
              "<assistant>x(f1)")
        << calls;
  }
  const Json function = {{"name", "f"}, {"parameters", R"({"type": "object"})"}};
  const Json schema = {{"name", "f"}, {"input_schema", R"({"type": "object"})"}};
  for (const Json& tool : {function, schema, Json(function.dump()), Json{{"type", "function"}, {"function", function}},
                           Json{{"type", "function"}, {"function", function.dump()}}}) {
    EXPECT_EQ(
        text(Json{{"messages", Json::array({{{"role", "user"}, {"content", "q"}}})}, {"tools", Json::array({tool})}}
                 .dump()),
        "<user>q[fobject]")
        << tool;
  }
  for (const char* none : {"\" \"", "\"null\"", "\"[]\"", "[]", "null"}) {
    EXPECT_EQ(text(R"({"messages": [{"role": "assistant", "content": "x", "tool_calls": )" + std::string(none) + "}]}"),
              "<assistant>x")
        << none;
    if (std::string(none) != "\"null\"") {
      EXPECT_EQ(text(R"({"messages": [{"role": "user", "content": "q"}], "tools": )" + std::string(none) + "}"),
                "<user>q");
    }
  }
  EXPECT_THAT(fault(R"({"messages": [{"role": "assistant", "tool_calls": "call f"}]})"),
              HasSubstr("no call with a 'name'"));
  EXPECT_EQ(text(R"({"params": {"max_tokens": 9, "system": "s", "messages": [{"role": "user", "content": "q"}]}})"),
            "<system>s<user>q");
  EXPECT_EQ(
      text(
          R"({"input": [{"role": "user", "content": "q"}, {"type": "function_call", "name": "f", "arguments": "{\"a\": 1}"}], "tools": [{"type": "function", "name": "f"}]})"),
      "<user>q<assistant>(f1)[f]");
  EXPECT_THAT(
      fault(R"({"input": [{"role": "user", "content": "q"}, {"type": "reasoning", "encrypted_content": "x"}]})"),
      HasSubstr("'encrypted_content', which servers refuse"));
  EXPECT_THAT(fault(R"({"input": [{"type": "function_call", "name": "f"}, {"type": "web_search_call"}]})"),
              HasSubstr("an item has the type 'web_search_call', which servers refuse"));
  EXPECT_THAT(fault(R"({"messages": [{"role": "user", "content": [{"type": "tool_result"}, {"type": "document"}]}]})"),
              HasSubstr("a message has a block of the type 'document', which servers refuse"));
  EXPECT_THAT(fault(R"({"system": [{"text": "s"}], "messages": [{"role": "user", "content": [{"text": "q"}]}]})"),
              HasSubstr("a message has a block without a type, which servers refuse"));
  EXPECT_THAT(
      fault(R"({"messages": [{"role": "system", "content": [{"type": "tool_removal", "tool": {"name": "f"}}]}]})"),
      HasSubstr("names the tool 'f', which 'tools' does not have"));
  EXPECT_THAT(fault(R"({"tools": [{"name": "f"}], "messages": [{"role": "user", "content": [{"type": "tool_removal", )"
                    R"("tool": {"name": "f"}}]}]})"),
              HasSubstr("a change of tools is not in a message of the system"));
}

TEST_F(PromptRows, LogsOfWhichPartIsRead) {
  take_agents_template();
  // A stored response holds its answer.
  for (const char* answer :
       {R"("a")", R"({"role": "assistant", "content": "a"})",
        R"([{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}])"}) {
    EXPECT_EQ(text(R"({"input": [{"role": "user", "content": "q"}], "output": )" + std::string(answer) + "}"),
              "<user>q<assistant>a");
  }
  // Blocks that leave no message leave nothing to read.
  for (const char* more : {"", R"(, "system": [{"type": "text", "text": ""}])"}) {
    const std::string row =
        R"({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "t"}]}])" + std::string(more);
    for (const std::string& whole : {row + "}", R"({"body": )" + row + "}}"}) {
      EXPECT_EQ(read(whole + "\n{\"text\": \"t\"}").skipped.at(0).reason, "empty 'messages'") << whole;
    }
  }
  EXPECT_THAT(fault(R"({"foo": 1, "b\u001b": "x"})"),
              HasSubstr("the row has the keys 'foo', 'b\\x1b', and none of \"text\""));
  EXPECT_THAT(fault("{}"), HasSubstr("the row has no keys, and none of"));
  // What no message and no template holds is named.
  EXPECT_THAT(
      reading_notes(
          read(R"({"request": {"messages": [{"role": "user", "content": "q"}]}, "response": "a", "custom_id": "7"})")),
      ElementsAre("1 row: 'messages' in 'request'; not read: 'response' (1)"));
  EXPECT_THAT(reading_notes(read(
                  R"({"messages": [{"role": "critic", "content": [{"type": "text", "text": "gone"}, )"
                  R"({"type": "image_url", "image_url": {}}]}, {"role": "user", "content": "q", "thinking": "t"}]})")),
              ElementsAre("1 row: 'messages'; not read: 'content of critic' (1), 'image_url' (1), 'thinking' (1)"));
  EXPECT_THAT(
      reading_notes(read(
          R"({"body": {"functions": [{"name": "f"}], "tools": [{"type": "web_search"}], "messages": [{"role": "function", "content": "gone"}, )"
          R"({"role": "assistant", "content": "x", "function_call": {"name": "f"}, "reasoning": "r", "name": "n"}]}})")),
      ElementsAre("1 row: 'messages' in 'body'; not read: 'content of function' (1), 'function_call' (1), "
                  "'functions' (1), 'reasoning' (1), 'tool web_search' (1)"));
  EXPECT_THAT(
      reading_notes(read(
          R"({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "gone"}, {"type": "document"}]}]}, )"
          R"({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "d"}, {"type": "text", "text": "x"}]}]})")),
      ElementsAre("1 row: 'messages'; not read: 'content of tool' (1), 'document' (1), 'redacted_thinking' (1)"));
  EXPECT_THAT(reading_notes(read(R"({"system": "s", "messages": [{"role": "system", "content": "t"}]})")),
              ElementsAre("1 row: 'messages'; not read: 'system' (1)"));
}

// Any value in the place of any other is read or refused in a sentence.
TEST_F(PromptRows, LogsWithOddValues) {
  const char* const logs[] = {
      R"({"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "c", "name": "f",
      "input": {"a": 1}}], "tool_calls": []}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content":
      [{"type": "text", "text": "x"}, {"type": "image"}, {"type": "tool_reference", "name": "f"}]}]}], "system": [{"type": "text",
      "text": "s"}], "tools": [{"name": "f", "input_schema": {}}, {"type": "namespace", "name": "n", "tools": [{"name": "x"}]},
      {"type": "function", "function": {"name": "f"}}], "thinking": {"type": "disabled"}, "output_config": {"effort": "low"}})",
      R"({"body": {"input": [{"role": "assistant", "content": [{"text": "a"}], "tool_calls": []}, {"type": "function_call", "name": "f",
      "namespace": "n", "arguments": "{}", "call_id": "c"}, {"type": "reasoning", "summary": [{"text": "r"}], "content": []},
      {"type": "function_call_output", "output": [{"type": "input_text", "text": "x"}]}], "instructions": "i", "reasoning":
      {"effort": "low"}, "tools": [{"type": "custom", "name": "f"}]}})"};
  chat_.set_rendering(Rendering::kServer);
  std::size_t refused = 0, rows = 0;
  for (const char* log : logs) {
    const Json sound = parse_json(log, "log");
    const Json flat = sound.flatten();
    for (const auto& [at, value] : flat.items()) {
      for (auto place = Json::json_pointer(at); !place.empty(); place.pop_back()) {
        for (const Json& odd :
             {Json(), Json(3), Json("x"), Json(Json::array()), Json::array({1}), Json(Json::object())}) {
          Json row = sound;
          row[place] = odd;
          ++rows;
          try {
            read(row.dump());
          } catch (const InputError&) {
            ++refused;
          }
        }
      }
    }
  }
  EXPECT_GT(refused, rows / 20);
  EXPECT_LT(refused, rows / 4 * 3);
}

TEST_F(PromptRows, Texts) {
  EXPECT_EQ(text(R"({"prompt": "a", "completion": "b"})"), "ab");
  EXPECT_EQ(text(R"({"prompt": "a", "response": "b"})"), "ab");
  EXPECT_EQ(text(R"({"prompt": "a", "answer": 42})"), "a");
  EXPECT_EQ(text(R"({"prompt": "[not JSON"})"), "[not JSON");
  EXPECT_EQ(text(R"({"text": "t", "prompt": "a"})"), "t");
  EXPECT_EQ(text(R"({"content": "t", "path": "x.py"})"), "t");
  EXPECT_EQ(text(R"({"body": {"prompt": "t", "max_tokens": 3}})"), "t");
  EXPECT_EQ(text(R"({"text": "first", "text": "last"})"), "last");
  EXPECT_EQ(text(R"({"text": "t", "score": -Infinity, "x": "NaN"})"), "t");
  EXPECT_THAT(fault(R"({"txt": "a"})"), AllOf(HasSubstr("none of \"text\""), HasSubstr("--column")));
}

TEST_F(PromptRows, ColumnsByName) {
  EXPECT_EQ(text(R"({"text": "t", "abstract": "a"})", {false, "abstract"}), "a");
  EXPECT_EQ(text(R"({"text": "t", "turns": [{"from": "human", "value": "q"}]})", {false, "turns"}), kAsked);
  EXPECT_EQ(text(R"({"log": {"messages": [{"role": "user", "content": "q"}]}})", {false, "log"}), kAsked);
  EXPECT_THAT(read(R"({"tokens": [3, 4], "attention_mask": [0, 1]})", {false, "tokens"}).prompts[0].ids,
              ElementsAre(4));
  EXPECT_THAT(message_of<InputError>([&] {
                text(R"({"text": "t"})", {false, "abstract"});
              }),
              HasSubstr("p.jsonl:1: the row has no column 'abstract'"));
}

TEST_F(PromptRows, MasksAndWhatStandsBesideIds) {
  const PromptSet set =
      read(R"({"input_ids": [0, 0, 5, 6], "attention_mask": [0, 0, 1, 1], "labels": [-100, -100, 5, 6], )"
           R"("position_ids": [1, 1, 0, 1], "token_type_ids": [0, 0, 0, 0]})");
  EXPECT_THAT(set.prompts.at(0).ids, ElementsAre(5, 6));
  EXPECT_THAT(reading_notes(set), IsEmpty());
  EXPECT_THAT(read(R"({"input_ids": [-100, 5], "attention_mask": [false, true]})").prompts[0].ids, ElementsAre(5));
  EXPECT_THAT(reading_notes(read(R"({"input_ids": [5, 6], "position_ids": [0, 0], "token_type_ids": [0, 1]})")),
              ElementsAre("1 row: 'input_ids'; not read: 'position_ids' (1), 'token_type_ids' (1)"));
  EXPECT_THAT(fault(R"({"input_ids": [5, 6], "attention_mask": [1]})"), HasSubstr("has 1 numbers, expected 2"));
  EXPECT_THAT(fault(R"({"input_ids": [5, 6], "attention_mask": [1, 2]})"), HasSubstr("holds 2, expected 0 and 1"));
  EXPECT_THAT(fault(R"({"input_ids": [5, -1], "attention_mask": [1, 1]})"), HasSubstr("-1"));
  EXPECT_EQ(read(R"({"input_ids": [5], "attention_mask": [0]})"
                 "\n{\"text\": \"a\"}")
                .skipped.at(0)
                .reason,
            "no tokens");
}

TEST_F(PromptRows, SaysOnceWhatWasReadAndWhatNot) {
  EXPECT_THAT(reading_notes(read("{\"text\": \"a\"}\n{\"prompt\": \"b\"}")), IsEmpty());
  const PromptSet set = read(R"({"prompt": "a", "completion": "b", "id": 1}
{"prompt": "a", "completion": "b", "id": 2, "rejected": "c"}
{"text": "a"})");
  EXPECT_THAT(reading_notes(set),
              ElementsAre("2 rows: 'prompt' with 'completion'; not read: 'id' (2), 'rejected' (1)", "1 row: 'text'"));
  // Keys that no template mentions change nothing; those that one does are its variables.
  EXPECT_THAT(
      reading_notes(read(
          R"({"messages": [{"role": "user", "content": "q"}], "references": ["r"], "m": 1, "empty": "", "tools": [{}]})")),
      ElementsAre("1 row: 'messages'; not read: 'references' (1), 'tools' (1)"));
  EXPECT_THAT(
      reading_notes(read(R"({"question": "q", "system": {"a": 1}, "system_prompt": "s", "answers": {"text": ["a"]}})")),
      ElementsAre(AllOf(HasSubstr("'question' with 'system_prompt'"), HasSubstr("'answers' (1), 'system' (1)"))));
  std::string many = "{\"text\": \"a\"";
  for (int i = 0; i < 200; ++i) many += ", \"k" + std::to_string(i) + "\": 1";
  EXPECT_LE(read(many + "}").readings.at("'text'").unread.size(), 65U);
}

TEST_F(PromptRows, Files) {
  const std::string rows = R"({"text": "a"})";
  EXPECT_EQ(file("p.json", "[" + rows + ", {\"text\": \"b]\"}]\n").prompts.at(1).source, "p.json:2");
  EXPECT_EQ(file("q.json", "\n{\n \"text\": \"a\"\n}\n{\"text\": \"b\"}").prompts.size(), 2U);
  EXPECT_EQ(file("p.ndjson", rows + "\n" + rows).prompts.size(), 2U);
  EXPECT_EQ(file("p.md", "# a").prompts.at(0).ids, tokenizer_.encode("# a", true));
  EXPECT_EQ(file("b.txt",
                 "\xEF\xBB\xBF"
                 "a")
                .prompts.at(0)
                .ids,
            tokenizer_.encode("a", true));
  EXPECT_EQ(file("b.jsonl", "\xEF\xBB\xBF" + rows).prompts.size(), 1U);
  EXPECT_EQ(load_text(folder_ / "b.txt", tokenizer_), tokenizer_.encode("a", true));
  const auto refused = [&](const std::string& name, const std::string& content) {
    return message_of<InputError>([&] { file(name, content); });
  };
  for (const char* damaged : {"[", "[{}", "[{} {}]", "[{},]", "[,]", "[{\"text\": \"a]", "[{}] x", "[1 2]"}) {
    EXPECT_THAT(refused("d.json", damaged), HasSubstr("d.json: is no array of JSON rows")) << damaged;
  }
  EXPECT_THAT(refused("t.parquet", "PAR1"),
              AllOf(HasSubstr("import pandas"), HasSubstr("read_parquet("), HasSubstr("to_json(")));
  EXPECT_THAT(refused("t.csv", "a,b"), HasSubstr("read_csv("));
}

TEST_F(PromptRows, NamesAndEncodingsOfFiles) {
  const std::string rows = R"({"text": "a"})";
  EXPECT_EQ(file("P.JSONL", rows).prompts.at(0).ids, tokenizer_.encode("a", true));
  EXPECT_EQ(file("P.Json", "[" + rows + "]").prompts.size(), 1U);
  const auto refused = [&](const std::string& name, const std::string& content) {
    return message_of<InputError>([&] { file(name, content); });
  };
  const std::string utf16("\xFF\xFE{\0}\0", 6), big("\xFE\xFF\0a", 4);
  EXPECT_THAT(refused("u.jsonl", utf16), HasSubstr("u.jsonl: is UTF-16 (or UTF-32)"));
  EXPECT_THAT(refused("u.json", big), HasSubstr("iconv -f UTF-16 -t UTF-8"));
  EXPECT_THAT(refused("u.txt", big), HasSubstr("is UTF-16"));
  EXPECT_THAT(message_of<InputError>([&] { load_text(folder_ / "u.txt", tokenizer_); }), HasSubstr("is UTF-16"));
  EXPECT_THAT(refused("array.jsonl", "[" + rows + ",\n" + rows + "]"), HasSubstr("array of rows is named .json"));
  EXPECT_THAT(refused("array.jsonl", "[" + rows + "]"), HasSubstr("array of rows is named .json"));
}

// The JSON of rows in a file that is one document by its name is read as it is, but not in silence.
TEST_F(PromptRows, DocumentsThatLookLikeRows) {
  const auto told = [&](const std::string& content) {
    ::testing::internal::CaptureStderr();
    file("rows.txt", content);
    const std::string first = ::testing::internal::GetCapturedStderr();
    ::testing::internal::CaptureStderr();
    load_text(folder_ / "rows.txt", tokenizer_);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), first);
    return first;
  };
  EXPECT_THAT(told("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), HasSubstr("rows.txt: begins with a JSON row"));
  for (const char* sound : {"{ text", "{\"size\": 3}", "a {\"text\": \"a\"}"}) EXPECT_EQ(told(sound), "") << sound;
}

TEST_F(PromptRows, TextsToScore) {
  const LazyTokenizer tokenizer(tokenizer_);
  write_file_atomic(folder_ / "t.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c\"}\n");
  EXPECT_TRUE(holds_rows(folder_ / "t.jsonl"));
  const RowText rows = load_row_text(folder_ / "t.jsonl", tokenizer, chat_, 8192);
  std::vector<std::int32_t> expected = tokenizer_.encode("a b", true);
  for (const std::int32_t id : tokenizer_.encode("c", true)) expected.push_back(id);
  EXPECT_EQ(rows.ids, expected);
  EXPECT_FALSE(rows.only_ids);
  for (const char* content : {"some text", "", "[1, 2]"}) {
    write_file_atomic(folder_ / "d.jsonl", content);
    EXPECT_FALSE(holds_rows(folder_ / "d.jsonl")) << content;
  }
  write_file_atomic(folder_ / "d.txt", "{\"text\": \"a b\"}");
  EXPECT_FALSE(holds_rows(folder_ / "d.txt"));
  write_file_atomic(folder_ / "no-suffix", "{\"text\": \"a b\"}");
  EXPECT_FALSE(holds_rows(folder_ / "no-suffix"));
}

TEST(RowJson, WhatPythonReads) {
  const Json row =
      parse_python_json(R"({"a": 1, "b": NaN, "a": {"x": [1], "x": [-Infinity]}, "c": "NaN", "d": [Infinity]})", "w");
  EXPECT_EQ(row.dump(), R"({"a":{"x":[null]},"b":null,"c":"NaN","d":[null]})");
  EXPECT_TRUE(std::isnan(row["b"].get<double>()) && std::isinf(row["a"]["x"][0].get<double>()));
  EXPECT_TRUE(has_value(row, "a") && !has_value(row, "b") && !has_value(row, "z"));
  for (const char* damaged : {"{\"a\": NaNs}", "{\"a\": \"oscar-number:NaN\", \"b\": NaN}", "{\"a\": 1", "NaN NaN"}) {
    EXPECT_THROW(parse_python_json(damaged, "w"), InputError) << damaged;
  }
  EXPECT_EQ(parse_python_json("{\"a\": \"oscar-number:NaN\"}", "w")["a"], "oscar-number:NaN");
  std::string many = "{\"k\": 0";
  for (int i = 0; i < 40; ++i) many += ", \"k" + std::to_string(i % 20) + "\": " + std::to_string(i);
  EXPECT_EQ(parse_python_json(many + "}", "w")["k19"], 39);
  EXPECT_EQ(parse_python_json(many + "}", "w").size(), 21U);
}

}  // namespace
}  // namespace oscar
