#include "checkpoint/model_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"

namespace oscar {
namespace {

TEST(ModelName, KnownNames) {
  for (const char* name : {"Qwen/Qwen3-8B", "tiny-qwen3", "meta-llama/Llama-3.1-8B-Instruct", "a", "org/a_b.c-d"}) {
    EXPECT_TRUE(is_model_name(name)) << name;
    EXPECT_EQ(plain_model_name(name), name);
    EXPECT_EQ(read_model_name(name, "f"), name);
  }
  for (const char* name : {"", "/", "a/", "/a", "a/b/c", ".", "..", "../a", "a/..", "-rf", "a/-b", "a b", "a;b"}) {
    EXPECT_FALSE(is_model_name(name)) << name;
  }
  EXPECT_FALSE(is_model_name(std::string(201, 'a')));
}

TEST(ModelName, FoldersOfAnyNameGetAPlainOne) {
  EXPECT_EQ(plain_model_name("my model (copy)"), "my-model-copy-");
  EXPECT_EQ(plain_model_name("$(touch x)"), "touch-x-");
  EXPECT_EQ(plain_model_name("\xe6\xa8\xa1"), "model");
  EXPECT_EQ(plain_model_name("..a"), "..a");  // a component that is not ".."
  EXPECT_EQ(plain_model_name("--help"), "help");
  EXPECT_EQ(plain_model_name(""), "");
  for (const char* name : {"a\nb", "a/b/c", "x\x1b[2J", "; rm -rf /", "```"}) {
    EXPECT_TRUE(is_model_name(plain_model_name(name))) << name;
  }
}

TEST(ModelName, FilesHoldNoCommands) {
  EXPECT_EQ(read_model_name("", "f"), "");
  for (const char* name : {"$(touch x)", "my model",  "caf\xc3\xa9", "a; rm -rf /", "a`id`",
                           "a|b",        "a&b",       "a>b",         "a'b",         "a\"b",
                           "a\\b",       "a\nb",      "a\n```\n# h", "x\x1b[2J",    "a\xe2\x80\xae",
                           "a\xff",      "../../etc", "a/b/c",       "<img src=x>", "a*",
                           "a?",         "!x",        "#x",          "{a}"}) {
    try {
      read_model_name(name, "f.json");
      ADD_FAILURE() << "accepted: " << name;
    } catch (const InputError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("f.json: the model's name is '"));
    }
  }
}

TEST(PlainWord, MethodIds) {
  for (const char* word : {"oscar", "oscar-head", "kivi2", "q4_0", "2bit"}) EXPECT_TRUE(is_plain_word(word)) << word;
  for (const char* word : {"", "-a", "a b", "a/b", "../a", "a.b", "a\n", "$x"})
    EXPECT_FALSE(is_plain_word(word)) << word;
  EXPECT_FALSE(is_plain_word(std::string(65, 'a')));
}

}  // namespace
}  // namespace oscar
