// Self-generated calibration data: rows of equal length, sampled at temperature 1 from the model's own distribution,
// with BF16 keys and values in the paged cache. All rows of a batch go forward together, one token each at a time.
// Every kBlockTokens tokens a prefill of each row refills the cache from the tokens. So a stopped run continues from
// its last block and writes the same rows as an uninterrupted run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "generate/row_script.h"
#include "model/decoder.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

inline constexpr std::int64_t kRowTokens = 1024;   // default row length: well beyond the BF16 windows
inline constexpr std::int64_t kBatchRows = 32;     // rows of a batch; on a GPU up to four times as many
inline constexpr std::int64_t kBlockTokens = 256;  // tokens of each row between two saved states

// Rows of equal length that hold a requested number of tokens.
struct TextShape {
  std::int64_t rows = 0, row_tokens = 0;
  std::int64_t batch_rows = kBatchRows;                      // rows that go forward together
  std::int64_t tokens() const { return rows * row_tokens; }  // the requested number, or a few more
};
// longest: limit of a row (--seq-len, the model's context).
TextShape text_shape(std::int64_t tokens, std::int64_t longest);

// Memory for the cache and the logits of a batch, without weights.
std::uint64_t text_bytes(const ModelConfig& model, const TextShape& shape);

// The same rows in larger batches, as many as a GPU with `device_bytes` of memory holds beside `weight_bytes`, since
// more rows hardly slow a step. It counts the total memory, not the free memory: other rows in the batch change the
// rounding, and equal machines must write equal text.
TextShape on_device(TextShape shape, const ModelConfig& model, std::uint64_t weight_bytes, std::uint64_t device_bytes);

struct TextRequest {
  TextShape shape;
  std::uint64_t seed = 0;
  std::int64_t vocabulary = 0;  // number of tokens that may be drawn: those known to the tokenizer
  fs::path work_dir;
  bool resume = false;
  Json identity;                           // as RunDirectory's `run`: everything that the rows depend on
  std::string resume_command;              // for the message of an interrupted run
  std::function<void()> after_block = {};  // called after each saved state; tests stop a run here
};

using TextRows = std::vector<std::vector<std::int32_t>>;  // [rows][row_tokens]

// Writes the rows, or continues them. Keeps the work directory: forget_text() removes it once the rows are safe.
// UsageError, InputError (the work directory is damaged or of another run), NumericalError (logits that are not
// finite), InterruptedError (the state is saved; the message says how to continue).
TextRows write_text(Decoder& decoder, const ScriptBook& book, const TextRequest& request);

// Removes the files of a run in its work directory, if it exists.
void forget_text(const TextRequest& request);

// Rows that a model wrote, as a prompt file: JSON rows {"input_ids", "decoded"}, which oscar-collect reads and people
// can inspect. The first row also records under "written" how the text was made.

void save_text(const fs::path& file, const TextRows& rows, const Tokenizer& tokenizer, const Json& written);

// The record in the first row; nullopt if it has none. InputError: unreadable.
std::optional<Json> written_record(const fs::path& file);

}  // namespace oscar
