#include "base/shell.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "base/foreign_text.h"
#include "base/random.h"

namespace oscar {
namespace {

TEST(Shell, KnownAnswers) {
  EXPECT_EQ(shell_command({"oscar-collect", "--model", "a b", "it's", ""}),
            "oscar-collect --model 'a b' 'it'\\''s' ''");
  EXPECT_EQ(shell_word("Qwen/Qwen3-8B"), "Qwen/Qwen3-8B");
  EXPECT_EQ(shell_word("$(touch x);`id`"), "'$(touch x);`id`'");
  EXPECT_EQ(shell_word("~/model"), "'~/model'");
  EXPECT_EQ(shell_word("a\n'\\\x1b"), "$'a\\x0a\\'\\\\\\x1b'");
}

// A shell reads back the bytes that were quoted, and the quoted form can be shown.
TEST(Shell, BashReadsTheSameBytes) {
  if (std::system("bash -c true > /dev/null 2>&1") != 0) GTEST_SKIP() << "no bash";
  std::vector<std::string> words = {"printf", "%s\\0"};
  std::string expected;
  for (std::uint64_t n = 0; n < 200; ++n) {
    std::string word;
    for (std::uint64_t i = 0; i < mix64(n) % 12; ++i) {
      const auto byte = static_cast<char>(mix64(n * 16 + i) >> 9);
      if (byte != '\0') word += byte;
    }
    words.push_back(word);
    expected += word + '\0';
    ASSERT_EQ(escape_text(shell_word(word)), shell_word(word));
  }
  FILE* pipe = popen(("exec bash -c " + shell_word(shell_command(words))).c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string read;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) read += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(read, expected);
}

}  // namespace
}  // namespace oscar
