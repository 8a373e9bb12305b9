// What is put into a row of calibration text and what the model writes: forced tokens at the start of the row, and
// after each text or answer that the model ends. Rows take turns:
//   0, 2, 4, ...  begin at the start token alone, and so does every text behind one that ended
//   1, 3, 5, ...  begin with an opener; where the model has a chat template, with a question in it, and every answer
//                 that ended is followed by the next question of the conversation
// Openers are drawn by (seed, row, number of the draw).
// Long rows also repeat passages of their own, word for word: models rarely look far back in what they write at
// temperature 1, and the heads that copy and recall, which long contexts are used for, would weigh nothing.
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

inline constexpr std::int64_t kRepeatedTokens = 64;  // of a passage
inline constexpr std::int64_t kRepeatDistance =
    320;  // behind the BF16 windows (64 and 256), so that coded tokens are read
inline constexpr std::int64_t kRepeatEvery = 256;  // tokens of a row, once it is long enough

class ScriptBook {
 public:
  // A template that renders no conversation is not used, which fault() tells; nor is it an error.
  ScriptBook(const ModelConfig& model, const Tokenizer& tokenizer, const ChatTemplate& chat, std::uint64_t seed);

  // The tokens that begin a row; at least one.
  std::vector<std::int32_t> begin(std::int64_t row) const;
  // Does this token end what the model writes in the row?
  bool ends(std::int64_t row, std::int32_t token) const;
  // What follows `token`, which ended the text before the draw-th opener of the row; may be empty.
  std::vector<std::int32_t> next(std::int64_t row, std::int64_t draw, std::int32_t token) const;

  // Where the passage begins that the row repeats from this position on, if it repeats one there: kRepeatedTokens, all
  // of them at least kRepeatDistance tokens back.
  std::optional<std::int64_t> repeated_from(std::int64_t row, std::int64_t position) const;

  bool chats() const { return !turns_.empty(); }
  const std::string& fault() const { return fault_; }  // why a template that is there is not used
  // sha256 over everything that can be forced: two books of one seed that agree in it write the same rows.
  std::string sha256() const;

 private:
  struct Turn {
    std::vector<std::int32_t> begin;  // of a conversation: the question, and the start of the answer
    std::vector<std::int32_t> next;   // from the end of an answer on: the next question, and the start of its answer
  };
  void add_turns(const Tokenizer& tokenizer, const ChatTemplate& chat);
  std::size_t draw(std::int64_t row, std::int64_t number, std::size_t count) const;
  bool chat_row(std::int64_t row) const { return row % 2 == 1 && chats(); }

  std::uint64_t seed_;
  std::vector<std::int32_t> start_;  // before a text
  std::set<std::int32_t> ends_;      // end-of-text tokens of the model
  std::set<std::int32_t> turn_ends_;
  std::vector<std::vector<std::int32_t>> openers_;  // with start_
  std::vector<Turn> turns_;                         // empty: no chat template
  std::string fault_;
};

}  // namespace oscar
