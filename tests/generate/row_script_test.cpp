#include "generate/row_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/checkpoint.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kModel = OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3";
constexpr std::int32_t kEndOfText = 8189, kTurnEnd = 8191;  // <|endoftext|>, which also begins texts, and <|im_end|>

ModelConfig config() { return Checkpoint::open(locate_model(kModel, "")).config(); }
Tokenizer tokenizer() { return Tokenizer::from_file(fs::path(kModel) / "tokenizer.json"); }

// A model directory with this chat template alone.
ChatTemplate chat_of(const TempDirectory& folder, const std::string& source) {
  write_file_atomic(folder.path() / "chat_template.jinja", source);
  return ChatTemplate::from_model(folder.path());
}

bool is_opener(const std::string& text) {
  return std::any_of(text_openers().begin(), text_openers().end(), [&](const auto& o) { return o == text; });
}

TEST(RowScript, RowsTakeTurnsBetweenTheStartTokenAndConversations) {
  const Tokenizer tokens = tokenizer();
  const ScriptBook book(config(), tokens, ChatTemplate::from_model(kModel), 5);
  ASSERT_TRUE(book.chats()) << book.fault();
  EXPECT_EQ(book.begin(0), std::vector<std::int32_t>{kEndOfText});
  const std::string turn = tokens.decode(book.begin(1), false);
  EXPECT_THAT(turn, StartsWith("<|im_start|>user\n"));
  EXPECT_TRUE(turn.ends_with("<|im_end|>\n<|im_start|>assistant\n")) << turn;

  EXPECT_TRUE(book.ends(0, kEndOfText) && book.ends(1, kEndOfText) && book.ends(1, kTurnEnd));
  EXPECT_FALSE(book.ends(0, kTurnEnd) || book.ends(0, 17) || book.ends(1, 17));
  EXPECT_TRUE(book.next(0, 1, kEndOfText).empty()) << "the token that ended the text begins the next one";
  // The answer's end is there already; what follows is the next question of the same conversation.
  EXPECT_THAT(tokens.decode(book.next(1, 1, kTurnEnd), false), StartsWith("\n<|im_start|>user\n"));
  EXPECT_THAT(tokens.decode(book.next(1, 1, kEndOfText), false), StartsWith("<|im_start|>user\n"));
}

TEST(RowScript, LongRowsRepeatPassagesFromFarBack) {
  const ScriptBook book(config(), tokenizer(), ChatTemplate::from_model(kModel), 5),
      other(config(), tokenizer(), ChatTemplate::from_model(kModel), 6);
  std::vector<std::int64_t> places, sources;
  for (std::int64_t position = 0; position < 1024; ++position) {
    if (const auto from = book.repeated_from(0, position)) {
      places.push_back(position), sources.push_back(*from);
      EXPECT_GE(*from, 0);
      EXPECT_LE(*from + kRepeatedTokens + kRepeatDistance, position);
    }
  }
  EXPECT_EQ(places, (std::vector<std::int64_t>{640, 896}));
  // Rows, places and seeds differ in what they repeat.
  EXPECT_NE(sources[0], sources[1]);
  EXPECT_NE(book.repeated_from(1, 640), book.repeated_from(0, 640));
  EXPECT_NE(other.repeated_from(0, 896), book.repeated_from(0, 896));
}

TEST(RowScript, WithoutATemplateRowsBeginWithOpeners) {
  const TempDirectory folder;
  const Tokenizer tokens = tokenizer();
  const ScriptBook book(config(), tokens, ChatTemplate::from_model(folder.path()), 5);
  EXPECT_FALSE(book.chats());
  EXPECT_TRUE(book.fault().empty()) << book.fault();
  const std::vector<std::int32_t> ids = book.begin(3);
  EXPECT_EQ(ids.front(), kEndOfText);
  EXPECT_TRUE(is_opener(tokens.decode(ids, true))) << tokens.decode(ids, true);
  EXPECT_TRUE(is_opener(tokens.decode(book.next(3, 1, kEndOfText), true)));
  EXPECT_FALSE(book.ends(3, kTurnEnd));
}

TEST(RowScript, AModelWithoutAStartTokenBeginsEveryRowWithAnOpener) {
  const TempDirectory folder;
  const Tokenizer tokens = tokenizer();
  ModelConfig model = config();
  model.bos_token = -1;
  model.eos_tokens.clear();
  const ScriptBook book(model, tokens, ChatTemplate::from_model(folder.path()), 5);
  for (std::int64_t row = 0; row < 4; ++row) EXPECT_TRUE(is_opener(tokens.decode(book.begin(row), true))) << row;
  EXPECT_FALSE(book.ends(0, kEndOfText));
}

TEST(RowScript, ATemplateThatRendersNoConversationIsLeftOut) {
  const TempDirectory first, second;
  const ScriptBook refusing(config(), tokenizer(), chat_of(first, "{{ raise_exception('only tools') }}"), 5);
  EXPECT_FALSE(refusing.chats());
  EXPECT_THAT(refusing.fault(), HasSubstr("only tools"));
  const ScriptBook silent(config(), tokenizer(), chat_of(second, "hello"), 5);
  EXPECT_FALSE(silent.chats());
  EXPECT_THAT(silent.fault(), HasSubstr("leaves out messages"));
}

TEST(RowScript, OpenersFollowFromSeedRowAndDraw) {
  const Tokenizer tokens = tokenizer();
  const ChatTemplate chat = ChatTemplate::from_model(kModel);
  const ScriptBook book(config(), tokens, chat, 5), same(config(), tokens, chat, 5), other(config(), tokens, chat, 6);
  int differ = 0;
  for (std::int64_t row = 1; row < 40; row += 2) {
    EXPECT_EQ(book.begin(row), same.begin(row));
    differ += book.begin(row) != other.begin(row) ? 1 : 0;
    EXPECT_EQ(book.next(row, 2, kTurnEnd), same.next(row, 2, kTurnEnd));
  }
  EXPECT_GT(differ, 10);
  EXPECT_EQ(book.sha256(), other.sha256()) << "the seed is no part of the openers";
  const TempDirectory folder;
  EXPECT_NE(book.sha256(), ScriptBook(config(), tokens, ChatTemplate::from_model(folder.path()), 5).sha256());
}

}  // namespace
}  // namespace oscar
