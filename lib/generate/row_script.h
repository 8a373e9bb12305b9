// What is forced into a row of calibration text, while the model writes the rest. Forced tokens are at the start of the
// row and after each text or answer that the model ends. Rows alternate:
//   0, 2, 4, ...  begin with only the start token, and so does every further text in them
//   1, 3, 5, ...  begin with an opener. If the model has a chat template, the opener holds a question, and the next
//                 question of the conversation follows every ended answer
// Openers are drawn by (seed, row, number of the draw). Long rows also repeat their own passages word for word. Models
// rarely look far back in text that they sample at temperature 1. Without repeats, the heads that copy and recall would
// have no weight, and long contexts use these heads.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

inline constexpr std::int64_t kRepeatedTokens = 64;  // length of a passage
inline constexpr std::int64_t kRepeatDistance =
    320;  // outside the BF16 windows (64 and 256), so that quantized tokens are read
inline constexpr std::int64_t kRepeatEvery = 256;  // distance between repeats in tokens, once the row is long enough

class ScriptBook {
 public:
  // A template that renders no conversation is not used and not an error; fault() gives the reason.
  ScriptBook(const ModelConfig& model, const Tokenizer& tokenizer, const ChatTemplate& chat, std::uint64_t seed);

  // The tokens that begin a row; at least one.
  std::vector<std::int32_t> begin(std::int64_t row) const;
  // True if this token ends the text that the model writes in the row.
  bool ends(std::int64_t row, std::int32_t token) const;
  // Tokens forced after `token`, which ended the text before the draw-th opener of the row; may be empty.
  std::vector<std::int32_t> next(std::int64_t row, std::int64_t draw, std::int32_t token) const;

  // Start of the passage that the row repeats from this position on, if it repeats one: kRepeatedTokens tokens, all at
  // least kRepeatDistance tokens back.
  std::optional<std::int64_t> repeated_from(std::int64_t row, std::int64_t position) const;

  bool chats() const { return !turns_.empty(); }
  const std::string& fault() const { return fault_; }  // why an existing template is not used
  // sha256 over everything that can be forced: two books with equal seed and sha256 force the same tokens.
  std::string sha256() const;

 private:
  struct Turn {
    std::vector<std::int32_t> begin;  // start of a conversation: the question, and the start of the answer
    std::vector<std::int32_t> next;   // from the end of an answer: the next question, and the start of its answer
  };
  void add_turns(const Tokenizer& tokenizer, const ChatTemplate& chat);
  std::size_t draw(std::int64_t row, std::int64_t number, std::size_t count) const;
  bool chat_row(std::int64_t row) const { return row % 2 == 1 && chats(); }

  std::uint64_t seed_;
  std::vector<std::int32_t> start_;  // before a text
  std::set<std::int32_t> ends_;      // end-of-text tokens of the model
  std::set<std::int32_t> turn_ends_;
  std::vector<std::vector<std::int32_t>> openers_;  // including start_
  std::vector<Turn> turns_;                         // empty: no chat template
  std::string fault_;
};

// Openings of calibration text, written for this project: texts of many kinds, and questions for a chat. The model
// continues them freely.
const std::vector<std::string>& text_openers();
const std::vector<std::string>& questions();

}  // namespace oscar
