// Calibration text that a model writes itself: rows of equal length, sampled at temperature 1 from the model's own
// distribution, with keys and values in the paged cache in BF16. The rows of a batch go forward together, one token of
// each at a time. Every kBlockTokens tokens the cache is filled anew from the tokens, by a prefill of each row, so that
// a run which was stopped goes on from its last block and writes the same rows as one that was not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "generate/row_script.h"
#include "model/decoder.h"

namespace oscar {

inline constexpr std::int64_t kRowTokens = 1024;   // of a row, where nothing is shorter: well behind the BF16 windows
inline constexpr std::int64_t kBatchRows = 32;     // that go forward together, on a GPU up to four times as many
inline constexpr std::int64_t kBlockTokens = 256;  // of each row between two states on disk

// Rows of equal length for a number of tokens.
struct TextShape {
  std::int64_t rows = 0, row_tokens = 0;
  std::int64_t batch_rows = kBatchRows;                      // that go forward together
  std::int64_t tokens() const { return rows * row_tokens; }  // the number that was asked for, or a few more
};
// longest: of a row (--seq-len, the model's context).
TextShape text_shape(std::int64_t tokens, std::int64_t longest);

// Why the model cannot write text on the device: a clause without a full stop; empty when it can.
std::string text_fault(const ModelConfig& model, at::Device device);

// Memory for the cache and the logits of a batch; weights are not counted.
std::uint64_t text_bytes(const ModelConfig& model, const TextShape& shape);

// The same rows in larger batches, as far as a GPU with `device_bytes` of memory holds them beside `weight_bytes`: a
// step of it takes hardly longer with more rows. All of its memory counts, not what is free, because rows that went
// forward beside others have other roundings: equal machines are to write equal text.
TextShape on_device(TextShape shape, const ModelConfig& model, std::uint64_t weight_bytes, std::uint64_t device_bytes);

struct TextRequest {
  TextShape shape;
  std::uint64_t seed = 0;
  std::int64_t vocabulary = 0;  // tokens that may be drawn: those the tokenizer knows
  fs::path work_dir;
  bool resume = false;
  Json identity;                           // as RunDirectory's `run`: what the rows depend on
  std::string resume_command;              // for the message of an interrupted run
  std::function<void()> after_block = {};  // called after each state on disk; tests stop a run here
};

using TextRows = std::vector<std::vector<std::int32_t>>;  // [rows][row_tokens]

// Writes the rows, or goes on with them. Leaves the work directory: forget_text() removes it once the rows are safe.
// UsageError, InputError (the work directory is damaged or of another run), NumericalError (logits that are not
// finite), InterruptedError (state saved; says how to go on).
TextRows write_text(Decoder& decoder, const ScriptBook& book, const TextRequest& request);

// Removes what a run kept in its work directory, where there is one.
void forget_text(const TextRequest& request);

}  // namespace oscar
