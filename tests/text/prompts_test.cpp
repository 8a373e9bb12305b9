#include "text/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/errors.h"
#include "support/paths.h"
#include "support/temp_directory.h"
#include "text/prompt_file.h"

namespace oscar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kModel = fs::path(OSCAR_SOURCE_DIR) / "sample_data/tiny-qwen3";

class Prompts : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& content) {
    write_file_atomic(folder_ / name, content);
    return folder_ / name;
  }
  PromptSet load(const std::string& name, const std::string& content) {
    return load_prompts({write(name, content)}, tokenizer_, chat_, 8192);
  }
  std::string fault(const std::string& name, const std::string& content) {
    try {
      load(name, content);
    } catch (const InputError& e) {
      return e.what();
    }
    return "(no InputError)";
  }

  TempDirectory folder_;
  Tokenizer tokenizer_ = Tokenizer::from_file(kModel / "tokenizer.json");
  ChatTemplate chat_ = ChatTemplate::from_model(kModel);
};

TEST_F(Prompts, ReadsTheFourKinds) {
  const PromptSet set = load("p.jsonl", R"({"text": "abc"}
{"prompt": "abc", "source": "other keys are fine"}
{"messages": [{"role": "user", "content": "hi"}]}
{"input_ids": [1, 2, 8191]}
)");
  ASSERT_EQ(set.prompts.size(), 4U);
  EXPECT_EQ(set.prompts[0].source, "p.jsonl:1");
  EXPECT_EQ(set.prompts[0].ids, tokenizer_.encode("abc", true));
  EXPECT_EQ(set.prompts[1].ids, set.prompts[0].ids);
  EXPECT_EQ(set.prompts[1].kind, "prompt");
  EXPECT_EQ(tokenizer_.decode(set.prompts[2].ids, false), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(set.prompts[3].ids, ElementsAre(1, 2, 8191));
  EXPECT_EQ(set.sha256.size(), 64U);
}

TEST_F(Prompts, AsksForAnAnswerOnlyWhenThereIsNone) {
  const PromptSet set =
      load("p.jsonl", R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]})");
  EXPECT_EQ(tokenizer_.decode(set.prompts.at(0).ids, false),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n");
}

TEST_F(Prompts, TextFileIsOneDocument) {
  const PromptSet set = load("d.txt", "one\n\ntwo\n");
  ASSERT_EQ(set.prompts.size(), 1U);
  EXPECT_EQ(set.prompts[0].source, "d.txt");
  EXPECT_EQ(set.prompts[0].ids, load_text(folder_ / "d.txt", tokenizer_));
}

TEST_F(Prompts, ListsEmptyRows) {
  const PromptSet set =
      load("p.jsonl", "{\"text\": \"\"}\n\n{\"messages\": []}\n{\"input_ids\": []}\r\n{\"text\": \"a\"}");
  EXPECT_EQ(set.prompts.size(), 1U);
  ASSERT_EQ(set.skipped.size(), 4U);
  EXPECT_EQ(set.skipped[0].source, "p.jsonl:1");
  EXPECT_EQ(set.skipped[1].reason, "blank line");
}

TEST_F(Prompts, RefusesMalformedRowsWithFileAndLine) {
  EXPECT_THAT(fault("p.jsonl", "{\"text\": \"a\"}\n{\"text\": "), HasSubstr("p.jsonl:2"));
  EXPECT_THAT(fault("p.jsonl", "{\"text\": \"a\xff\"}"), HasSubstr("p.jsonl:1"));
  EXPECT_THAT(fault("p.jsonl", "[1]"), HasSubstr("the row is array"));
  EXPECT_THAT(fault("p.jsonl", "{\"txt\": \"a\"}"), HasSubstr("none of"));
  EXPECT_THAT(fault("p.jsonl", "{\"text\": 3}"), HasSubstr("expected a string"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [1, 8192]}"), HasSubstr("vocabulary of 8192"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [-1]}"), HasSubstr("-1"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [18446744073709551615]}"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [1.5]}"), HasSubstr("expected integers"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [true]}"), HasSubstr("expected integers"));
  EXPECT_THAT(fault("p.jsonl", "{\"messages\": [\"hi\"]}"), HasSubstr("expected an object"));
  EXPECT_THAT(fault("p.jsonl", "{\"messages\": [{\"role\": \"user\"}]}"), HasSubstr("p.jsonl:1: the chat template"));
  EXPECT_THAT(fault("p.jsonl", "{\"messages\": [{\"content\": \"x\"}]}"),
              HasSubstr("a message: the key 'role' is missing"));
  const std::string turn = R"({"messages": [{"role": "user", "content": "x"}], )";
  EXPECT_THAT(fault("p.jsonl", turn + R"("tools": {}})"), HasSubstr("'tools' is object, expected an array of objects"));
  EXPECT_THAT(fault("p.jsonl", turn + R"("tools": [3]})"), HasSubstr("'tools' holds number"));
  EXPECT_THAT(fault("p.jsonl", turn + R"("documents": ["d"]})"), HasSubstr("'documents' holds string"));
  EXPECT_THAT(fault("p.jsonl", turn + R"("tools": "[1"})"), HasSubstr("'tools': is not valid JSON: it ends too early"));
  EXPECT_THAT(fault("p.jsonl", turn + R"("add_generation_prompt": 1})"), HasSubstr("expected true or false"));
  EXPECT_THAT(fault("p.jsonl", turn + R"("chat_template_kwargs": {"tools": []}})"), HasSubstr("holds 'tools'"));
  EXPECT_THAT(fault("p.jsonl", turn + R"("continue_final_message": true})"), HasSubstr("is not supported"));
  EXPECT_THAT(fault("p.jsonl", turn + R"("x": [123456789012345678901234]})"), HasSubstr("more than 64 bits"));
  EXPECT_THAT(fault("p.jsonl", turn + R"("x": 9223372036854775808})"), HasSubstr("more than 63 bits"));
  EXPECT_THAT(fault("p.jsonl", ""), HasSubstr("no usable prompt"));
  EXPECT_THAT(fault("p.jsonl", "\n{\"text\": \"\"}\n"), HasSubstr("2 rows were skipped"));
  EXPECT_THAT(fault("p.csv", "a,b"), HasSubstr("unknown kind of prompt file '.csv'"));
  EXPECT_THAT(fault("d.txt", "caf\xe9"), HasSubstr("not valid UTF-8 at byte 3"));
}

TEST_F(Prompts, PassesToolsAndVariablesToTheTemplate) {
  write("chat_template.jinja",
        "{{ tools|tojson }}{{ documents|length }}{{ level }}{{ mode }}{{ add_generation_prompt }}"
        "{{ messages[-1].content[0].text }}");
  const ChatTemplate chat = ChatTemplate::from_model(folder_.path());
  const std::string row = R"({"messages": [{"role": "tool", "content": [{"type": "text", "text": "t"}]}],
      "documents": [{}, {}], "level": 3, "chat_template_kwargs": {"mode": "m"}, "tools": )";
  const auto text = [&](const std::string& tools) {
    std::string line = row + tools + "}";
    std::erase(line, '\n');
    const PromptSet set = parse_prompt_rows(line, "w", "n", tokenizer_, chat, 8192);
    return tokenizer_.decode(set.prompts.at(0).ids, false);
  };
  EXPECT_EQ(text(R"([{"b": 1, "a": 1e20}])"), R"([{"b": 1, "a": 1e+20}]23mTruet)");
  EXPECT_EQ(text(R"("[{\"b\": 1}]")"), R"([{"b": 1}]23mTruet)");  // JSON as text, as some datasets keep it
  EXPECT_EQ(text("null, \"add_generation_prompt\": false"), "null23mFalset");
}

TEST_F(Prompts, CountsBadRowsWhereTheyAreSkipped) {
  const std::string rows = "{\"text\": \"a\"}\n{\n[1]\n\n{\"input_ids\": [9999]}\n{\"text\": \"b\"}\n";
  const PromptSet set = parse_prompt_rows(rows, "dir/p.jsonl", "p.jsonl", tokenizer_, chat_, 8192, {true});
  EXPECT_EQ(set.prompts.size(), 2U);
  EXPECT_EQ(set.bad_rows, 3);
  EXPECT_EQ(set.first_bad, "dir/p.jsonl:2: is not valid JSON: it ends too early");
  ASSERT_EQ(set.skipped.size(), 4U);
  EXPECT_EQ(set.skipped[0].source, "p.jsonl:2");
  EXPECT_EQ(set.skipped[0].reason, "bad row");
  EXPECT_EQ(set.skipped[2].reason, "blank line");
  try {
    parse_prompt_rows("{\n{\n", "p", "p", tokenizer_, chat_, 8192, {true});
    ADD_FAILURE() << "no row is usable";
  } catch (const InputError& e) {
    EXPECT_THAT(e.what(), HasSubstr("2 rows were skipped"));
    EXPECT_THAT(e.what(), HasSubstr("the first bad one: p:1: is not valid JSON"));
  }
}

// Made by gzip -n.
const std::string kGzip(
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56\x2a\x49\xad\x28\x51"
    "\xb2\x52\x50\x4a\x54\xaa\xe5\x02\x00\xbd\xd2\x2a\x20\x0e\x00\x00\x00",
    34);

TEST_F(Prompts, ReadsCompressedFiles) {
  const PromptSet set = load("p.jsonl.gz", kGzip);
  ASSERT_EQ(set.prompts.size(), 1U);
  EXPECT_EQ(set.prompts[0].source, "p.jsonl.gz:1");
  EXPECT_EQ(set.prompts[0].ids, tokenizer_.encode("a", true));
  EXPECT_EQ(load("p2.jsonl.gz", kGzip + kGzip).prompts.size(), 2U);
  EXPECT_EQ(load("p3.jsonl.gz", kGzip + std::string(512, '\0')).prompts.size(), 1U);  // padded, as gzip allows
  EXPECT_EQ(load_text(write("d.txt.gz", kGzip), tokenizer_), tokenizer_.encode("{\"text\": \"a\"}\n", true));
  EXPECT_EQ(load("d.txt.gz", kGzip).prompts[0].source, "d.txt.gz");
}

TEST_F(Prompts, RefusesDamagedCompressedFiles) {
  EXPECT_THAT(fault("p.jsonl.gz", "{}"), HasSubstr("is not a gzip file"));
  EXPECT_THAT(fault("p.jsonl.gz", kGzip.substr(0, 20)), HasSubstr("ends too early"));
  EXPECT_THAT(fault("p.jsonl.gz", kGzip.substr(0, 30)), HasSubstr("ends too early"));
  EXPECT_THAT(fault("p.jsonl.gz", kGzip + "x"), HasSubstr("the gzip file"));
  EXPECT_THAT(fault("p.jsonl.gz", kGzip + std::string("\0x", 2)), HasSubstr("the gzip file"));
  std::string other = kGzip;
  other[27] = '\x5a';  // the checksum
  EXPECT_THAT(fault("p.jsonl.gz", other), HasSubstr("the gzip file is damaged"));
  EXPECT_THAT(fault("p.gz", kGzip), HasSubstr("unknown kind of prompt file"));
  const auto bounded = [&] { return gunzip(kGzip, "f", 13); };
  EXPECT_THROW(bounded(), InputError);
  EXPECT_EQ(gunzip(kGzip, "f", 14).size(), 14U);
}

// 42 million rows fit into a compressed file of a megabyte: what is kept of rows is charged, not the bytes of the file.
TEST_F(Prompts, RowsAreChargedToABudget) {
  std::string rows, blanks;
  for (int i = 0; i < 1000; ++i) rows += "{\"text\":\"a b\"}\n", blanks += "\n";
  for (const std::string& content : {rows, rows.substr(0, rows.find('\n') + 1) + blanks}) {
    const fs::path file = write("many.jsonl", content);
    PromptOptions options;
    options.most_kept = 100 * 500;  // each takes 480 bytes and its ids
    options.skip_bad_rows = true;   // the end of the budget is no bad row
    try {
      load_prompts({file}, tokenizer_, chat_, 8192, options);
      ADD_FAILURE() << "1000 rows fit into the budget of 100";
    } catch (const InputError& e) {
      EXPECT_THAT(e.what(), HasSubstr("take more than 48.8 KiB"));
      EXPECT_THAT(e.what(), HasSubstr("many.jsonl:10"));  // no regular expression: gtest's hang under the sanitizers
    }
    options.most_kept = 1000 * 500;
    EXPECT_NO_THROW(load_prompts({file}, tokenizer_, chat_, 8192, options));
  }
}

TEST_F(Prompts, NoticesOneFileGivenTwice) {
  const fs::path file = write("p.jsonl", R"({"text": "a"})");
  fs::create_symlink(file, folder_ / "link.jsonl");
  fs::create_hard_link(file, folder_ / "hard.jsonl");
  for (const fs::path& again : {file, folder_ / "link.jsonl", folder_ / "hard.jsonl", folder_ / "." / "p.jsonl"}) {
    EXPECT_THROW(load_prompts({file, again}, tokenizer_, chat_, 8192), UsageError) << again;
  }
  const fs::path copy = write("copy.jsonl", R"({"text": "a"})");
  EXPECT_EQ(load_prompts({file, copy}, tokenizer_, chat_, 8192).prompts.size(), 2U);
}

TEST_F(Prompts, RefusesATokenizerOfAnotherModel) {
  EXPECT_THROW(load_prompts({write("p.jsonl", R"({"text": "<|im_end|>"})")}, tokenizer_, chat_, 8191), InputError);
}

TEST_F(Prompts, HashFollowsTheIds) {
  const std::string a = load("a.jsonl", R"({"text": "same"})").sha256;
  EXPECT_EQ(a, load("b.jsonl", R"({"prompt": "same"})").sha256);
  EXPECT_NE(a, load("c.jsonl", R"({"text": "other"})").sha256);
  // Where one prompt ends counts, too.
  EXPECT_NE(load("d.jsonl", R"({"input_ids": [1, 2]})").sha256,
            load("e.jsonl", "{\"input_ids\": [1]}\n{\"input_ids\": [2]}").sha256);
  // sha256 of u64 1 (count), i32 7, little-endian.
  EXPECT_EQ(load("f.jsonl", R"({"input_ids": [7]})").sha256,
            "34e4bbb2c83290516b8dad48744ca9bb38d8b7590ffc9120fac94af81f65f488");
}

}  // namespace
}  // namespace oscar
