// The tokens that a run uses: prompts in order, until the token budget is spent. A piece is one sequence, whose
// positions start at 0. Either each prompt is cut into pieces of at most seq_len tokens, or prompts are *packed* into
// pieces of seq_len tokens. Packed prompts follow one another, each with the tokens that its tokenizer or chat template
// adds. A query then sees all earlier tokens of its piece, as in the packed sequences of training. Everything that is
// cut or omitted is counted and named.
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
  std::int64_t offset = 0;  // first token of the prompt that the segment uses
  std::int64_t length = 0;  // tokens
};

struct Piece {
  std::vector<Segment> parts;  // in order; only one if prompts are not packed
  std::int64_t length = 0;     // tokens of all parts
  std::int64_t position = 0;   // tokens of all pieces before this one
  std::int64_t sequence = 0;   // its number among the pieces of the full run, also in a shard's plan
};

// Consecutive pieces that go through a layer together: about seq_len tokens, so that short prompts do not run one by
// one.
struct Step {
  std::size_t first = 0, count = 0;  // pieces
  std::int64_t position = 0, tokens = 0;
};

// A share of a run: 1 of 1 is the full run.
struct Shard {
  std::int64_t index = 1, count = 1;
  bool is_part() const { return count > 1; }
};

struct TokenPlan {
  std::vector<Piece> pieces;
  std::vector<Step> steps;
  std::int64_t tokens = 0;
  std::int64_t available = 0;     // tokens of all prompts
  std::int64_t prompts_used = 0;  // fully or in part
  std::int64_t seq_len = 0;
  bool packed = false;
  std::int64_t longest = 0;  // piece
  // The plan of a shard (shard.h) holds the share's own pieces, steps, tokens and longest; all else describes the full
  // plan.
  Shard shard;
  std::int64_t whole_tokens = 0, whole_sequences = 0, whole_longest = 0;
  Json cut;        // [{source, tokens, pieces}]: prompts that are cut into several pieces
  Json shortened;  // null, or {source, tokens, used}: the prompt cut by the end of the budget
  Json unused;     // [{first, last, rows, reason}]: runs of rows beyond the budget
  Json skipped;    // the same for rows that the prompt reader could not use
};

TokenPlan make_token_plan(const PromptSet& prompts, std::int64_t budget, std::int64_t seq_len, bool packed = false);

// The sequences of a step, from position 0, identified by their number in the plan.
SequenceBatch batch_of(const TokenPlan& plan, const Step& step);

// `count` ids of a piece, starting at token `first`.
std::vector<std::int32_t> piece_ids(const PromptSet& prompts, const Piece& piece, std::int64_t first,
                                    std::int64_t count);

// The ids of a step, piece by piece.
std::vector<std::int32_t> step_ids(const PromptSet& prompts, const TokenPlan& plan, const Step& step);

// Sentences about everything that was cut, shortened, skipped or unused; empty if nothing was.
std::vector<std::string> plan_notes(const TokenPlan& plan, std::int64_t budget);

}  // namespace oscar
