#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "support/paths.h"

namespace oscar {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace oscar
