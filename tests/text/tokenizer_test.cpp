#include "text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/files.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const fs::path kSample = fs::path(OSCAR_SOURCE_DIR) / "sample_data/tiny-qwen3/tokenizer.json";

TEST(SampleTokenizer, RoundTripsText) {
  const Tokenizer tokenizer = Tokenizer::from_file(kSample);
  EXPECT_EQ(tokenizer.vocabulary_size(), 8192);
  for (const std::string text :
       {"Hello, world!", "  two  spaces\n\n", "naïve façade 東京 🙂", "x = [i**2 for i in y]"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true)), text);
  }
  EXPECT_THAT(tokenizer.encode("", true), IsEmpty());
}

TEST(SampleTokenizer, FindsSpecialTokensInText) {
  const Tokenizer tokenizer = Tokenizer::from_file(kSample);
  EXPECT_THAT(tokenizer.encode("<|im_start|><|im_end|>", false), ElementsAre(8190, 8191));
  EXPECT_EQ(tokenizer.token_id("<|endoftext|>"), 8189);
  EXPECT_EQ(tokenizer.decode({8190, 64}), "a");
  EXPECT_EQ(tokenizer.decode({8190, 64}, false), "<|im_start|>a");
}

// A directory without tokenizer.json is refused with the command that makes one.
TEST(MissingTokenizer, NamesTheCommandThatConvertsWhatIsThere) {
  const TempDirectory folder;
  const auto fault = [&] {
    try {
      Tokenizer::from_file(folder.path() / "tokenizer.json");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("(no InputError)");
  };
  EXPECT_THAT(fault(), HasSubstr("tokenizer.json is missing; put the tokenizer of the model there"));
  write_file_atomic(folder.path() / "qwen.tiktoken", "IQ== 0\nIg== 1\n");
  EXPECT_THAT(fault(), AllOf(HasSubstr("qwen.tiktoken (tiktoken) is not read; convert it: cp '"),
                             HasSubstr("/tiktoken.model' && python3 -c \"from transformers import AutoTokenizer as A; "
                                       "A.from_pretrained('")));
  write_file_atomic(folder.path() / "tokenizer.model", std::string("\x0a\x0d\x0a\x05<unk>\x15\0\0", 13));
  EXPECT_THAT(fault(), AllOf(HasSubstr("tokenizer.model (SentencePiece) is not read"),
                             HasSubstr("A.from_pretrained('" + folder.path().string() + "').save_pretrained('" +
                                       folder.path().string() + "')\" (needs transformers, sentencepiece"),
                             Not(HasSubstr("tiktoken"))));
  write_file_atomic(folder.path() / "tokenizer.model", "IQ== 0\nIg== 1\n");
  EXPECT_THAT(fault(), HasSubstr("tokenizer.model (tiktoken) is not read"));
}

}  // namespace
}  // namespace oscar
