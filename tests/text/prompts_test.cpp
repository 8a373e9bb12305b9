#include "text/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/errors.h"
#include "support/paths.h"
#include "support/temp_directory.h"

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
  EXPECT_THAT(fault("p.jsonl", "{\"text\": \"a\", \"input_ids\": [1]}"), HasSubstr("both 'text' and 'input_ids'"));
  EXPECT_THAT(fault("p.jsonl", "{\"text\": 3}"), HasSubstr("expected a string"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [1, 8192]}"), HasSubstr("vocabulary of 8192"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [-1]}"), HasSubstr("-1"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [18446744073709551615]}"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [1.5]}"), HasSubstr("expected integers"));
  EXPECT_THAT(fault("p.jsonl", "{\"input_ids\": [true]}"), HasSubstr("expected integers"));
  EXPECT_THAT(fault("p.jsonl", "{\"messages\": [\"hi\"]}"), HasSubstr("expected an object"));
  EXPECT_THAT(fault("p.jsonl", "{\"messages\": [{\"role\": \"user\"}]}"), HasSubstr("'content' is missing"));
  EXPECT_THAT(fault("p.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": [\"x\"]}]}"), HasSubstr("a string"));
  EXPECT_THAT(fault("p.jsonl", ""), HasSubstr("no usable prompt"));
  EXPECT_THAT(fault("p.jsonl", "\n{\"text\": \"\"}\n"), HasSubstr("2 rows were skipped"));
  EXPECT_THAT(fault("p.csv", "a,b"), HasSubstr("unknown kind of prompt file '.csv'"));
  EXPECT_THAT(fault("d.txt", "caf\xe9"), HasSubstr("not valid UTF-8 at byte 3"));
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
