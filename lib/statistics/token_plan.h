// Which tokens a run uses: prompts in order, until the token budget is spent. A piece is a sequence of its own, whose
// positions start at 0. Either each prompt is cut into pieces of at most seq_len tokens, or prompts are *packed*: they
// follow one another, each with the tokens that its tokenizer or chat template put around it, into pieces of seq_len
// tokens, and a query sees all tokens before it in its piece, as in the packed sequences that models are trained on.
// Nothing is cut or left out without being counted and named.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/attention.h"
#include "text/prompts.h"

namespace oscar {

// Consecutive tokens of one prompt.
struct Segment {
  std::size_t prompt = 0;   // index in the prompt set
  std::int64_t offset = 0;  // first token of the prompt that is used
  std::int64_t length = 0;  // tokens
};

struct Piece {
  std::vector<Segment> parts;  // in order; one where prompts are not packed
  std::int64_t length = 0;     // tokens of all parts
  std::int64_t position = 0;   // tokens of all pieces before this one
  std::int64_t sequence = 0;   // its number among the pieces of the whole run, also in a shard's plan
};

// Consecutive pieces that go through a layer together: about seq_len tokens, so short prompts do not run one by one.
struct Step {
  std::size_t first = 0, count = 0;  // pieces
  std::int64_t position = 0, tokens = 0;
};

// Which share of a run: 1 of 1 is the whole.
struct Shard {
  std::int64_t index = 1, count = 1;
  bool is_part() const { return count > 1; }
};

struct TokenPlan {
  std::vector<Piece> pieces;
  std::vector<Step> steps;
  std::int64_t tokens = 0;
  std::int64_t available = 0;     // tokens of all prompts
  std::int64_t prompts_used = 0;  // wholly or in part
  std::int64_t seq_len = 0;
  bool packed = false;
  std::int64_t longest = 0;  // piece
  // A plan of one shard (shard.h) holds that share's pieces, steps, tokens and longest; everything else is the whole's.
  Shard shard;
  std::int64_t whole_tokens = 0, whole_sequences = 0, whole_longest = 0;
  Json cut;        // [{source, tokens, pieces}]: prompts that are in several pieces
  Json shortened;  // null, or {source, tokens, used}: the prompt that met the end of the budget
  Json unused;     // [{first, last, rows, reason}]: runs of rows the budget did not reach
  Json skipped;    // the same for rows the prompt reader could not use
};

TokenPlan make_token_plan(const PromptSet& prompts, std::int64_t budget, std::int64_t seq_len, bool packed = false);

// The sequences of a step, from position 0, named by their number in the plan.
SequenceBatch batch_of(const TokenPlan& plan, const Step& step);

// `count` ids of a piece, from the token `first` of it on.
std::vector<std::int32_t> piece_ids(const PromptSet& prompts, const Piece& piece, std::int64_t first,
                                    std::int64_t count);

// The ids of a step, piece after piece.
std::vector<std::int32_t> step_ids(const PromptSet& prompts, const TokenPlan& plan, const Step& step);

// Sentences about everything that was cut, shortened, skipped or left unused; empty when nothing was.
std::vector<std::string> plan_notes(const TokenPlan& plan, std::int64_t budget);

}  // namespace oscar
