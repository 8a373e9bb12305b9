#include "collect/token_plan.h"

#include <algorithm>

#include "base/errors.h"

namespace oscar {
namespace {

// Appends a row to a list of runs {first, last, rows, reason}. A row with the last run's reason extends that run, so
// the list stays short for prompt files far larger than the budget.
void append_run(Json& runs, const std::string& source, const std::string& reason) {
  if (!runs.empty() && runs.back()["reason"] == reason) {
    runs.back()["last"] = source;
    runs.back()["rows"] = runs.back()["rows"].get<std::int64_t>() + 1;
  } else {
    runs.push_back({{"first", source}, {"last", source}, {"rows", 1}, {"reason", reason}});
  }
}

// Adds `tokens` tokens of a prompt; returns the number of pieces that hold them.
std::int64_t add_prompt(TokenPlan& plan, std::size_t prompt, std::int64_t tokens) {
  bool fresh = !plan.packed;  // the prompt begins a piece, whatever room the last piece has
  std::int64_t pieces = 0;
  for (std::int64_t offset = 0; offset < tokens; ++pieces, fresh = false) {
    if (fresh || plan.pieces.empty() || plan.pieces.back().length == plan.seq_len) {
      plan.pieces.push_back({{}, 0, plan.tokens, static_cast<std::int64_t>(plan.pieces.size())});
    }
    Piece& piece = plan.pieces.back();
    const std::int64_t length = std::min(plan.seq_len - piece.length, tokens - offset);
    piece.parts.push_back({prompt, offset, length});
    piece.length += length;
    offset += length;
    plan.tokens += length;
    plan.longest = std::max(plan.longest, piece.length);
  }
  return pieces;
}

void group_steps(TokenPlan& plan) {
  for (std::size_t i = 0; i < plan.pieces.size(); ++i) {
    const Piece& piece = plan.pieces[i];
    if (plan.steps.empty() || plan.steps.back().tokens + piece.length > plan.seq_len) {
      plan.steps.push_back({i, 0, piece.position, 0});
    }
    ++plan.steps.back().count;
    plan.steps.back().tokens += piece.length;
  }
}

std::string count(std::int64_t n, const char* noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); }

}  // namespace

TokenPlan make_token_plan(const PromptSet& prompts, std::int64_t budget, std::int64_t seq_len, bool packed) {
  if (budget < 1) throw UsageError("--tokens must be at least 1");
  if (seq_len < 1) throw UsageError("--seq-len must be at least 1");
  TokenPlan plan{.seq_len = seq_len, .packed = packed};
  plan.cut = plan.unused = plan.skipped = Json::array();
  for (std::size_t i = 0; i < prompts.prompts.size(); ++i) {
    const Prompt& prompt = prompts.prompts[i];
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    plan.available += length;
    const std::int64_t use = std::min(length, budget - plan.tokens);
    if (use <= 0) {
      if (length > 0) append_run(plan.unused, prompt.source, "beyond the token budget");
      continue;
    }
    ++plan.prompts_used;
    if (use < length) plan.shortened = {{"source", prompt.source}, {"tokens", length}, {"used", use}};
    const std::int64_t pieces = add_prompt(plan, i, use);
    if (pieces > 1) plan.cut.push_back({{"source", prompt.source}, {"tokens", length}, {"pieces", pieces}});
  }
  for (const SkippedRow& row : prompts.skipped) append_run(plan.skipped, row.source, row.reason);
  if (plan.tokens == 0) throw InputError("the prompt files hold no tokens; nothing can be collected");
  group_steps(plan);
  plan.whole_tokens = plan.tokens;
  plan.whole_sequences = static_cast<std::int64_t>(plan.pieces.size());
  plan.whole_longest = plan.longest;
  return plan;
}

SequenceBatch batch_of(const TokenPlan& plan, const Step& step) {
  SequenceBatch batch;
  for (std::size_t i = step.first; i < step.first + step.count; ++i) {
    batch.ids.push_back(static_cast<std::int64_t>(i));
    batch.lengths.push_back(plan.pieces[i].length);
    batch.starts.push_back(0);
  }
  return batch;
}

std::vector<std::int32_t> piece_ids(const PromptSet& prompts, const Piece& piece, std::int64_t first,
                                    std::int64_t count) {
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(count));
  std::int64_t place = 0;  // position of the segment in the piece
  for (const Segment& part : piece.parts) {
    const std::int64_t begin = std::max(first, place), end = std::min(first + count, place + part.length);
    if (begin < end) {
      const auto from = prompts.prompts[part.prompt].ids.begin() + (part.offset + begin - place);
      ids.insert(ids.end(), from, from + (end - begin));
    }
    place += part.length;
  }
  return ids;
}

std::vector<std::int32_t> step_ids(const PromptSet& prompts, const TokenPlan& plan, const Step& step) {
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(step.tokens));
  for (std::size_t i = step.first; i < step.first + step.count; ++i) {
    const std::vector<std::int32_t> piece = piece_ids(prompts, plan.pieces[i], 0, plan.pieces[i].length);
    ids.insert(ids.end(), piece.begin(), piece.end());
  }
  return ids;
}

std::vector<std::string> plan_notes(const TokenPlan& plan, std::int64_t budget) {
  std::vector<std::string> notes;
  for (const Json& cut : plan.cut) {
    notes.push_back(cut["source"].get<std::string>() + ": " + std::to_string(cut["tokens"].get<std::int64_t>()) +
                    " tokens, cut into " + count(cut["pieces"].get<std::int64_t>(), "piece") + " of at most " +
                    std::to_string(plan.seq_len) + (plan.packed ? ", the length of a sequence" : " (--seq-len)"));
  }
  if (!plan.shortened.is_null()) {
    notes.push_back(plan.shortened["source"].get<std::string>() + ": shortened from " +
                    std::to_string(plan.shortened["tokens"].get<std::int64_t>()) + " to " +
                    std::to_string(plan.shortened["used"].get<std::int64_t>()) +
                    " tokens, the end of the budget (--tokens)");
  }
  for (const Json* list : {&plan.unused, &plan.skipped}) {
    for (const Json& run : *list) {
      const std::int64_t rows = run["rows"].get<std::int64_t>();
      const std::string span =
          run["first"].get<std::string>() + (rows > 1 ? " to " + run["last"].get<std::string>() : "");
      notes.push_back(span + ": " + count(rows, "row") + " not used: " + run["reason"].get<std::string>());
    }
  }
  if (plan.whole_tokens < budget) {
    notes.push_back("the prompts hold " + count(plan.whole_tokens, "token") + " of the " + std::to_string(budget) +
                    " asked for (--tokens)");
  }
  return notes;
}

}  // namespace oscar
