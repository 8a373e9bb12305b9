// The calibration text of measured curves: prompts or documents, cut into sequences of equal length.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/model_config.h"
#include "text/prompts.h"
#include "text/sequences.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

struct CurveText {
  std::vector<std::vector<std::int32_t>> sequences;  // of equal length
  Json record;                                       // name, and sha256 of the prompts
  Json hashes;  // sha256, and used_text_record() of the sequences: text that verify must not score

  std::int64_t length() const { return sequences.empty() ? 0 : std::ssize(sequences.front()); }  // in tokens
};

// Concatenates the prompts and cuts them by cut_sequences() (whose errors it throws). If there are more sequences than
// `count`, it takes `count` at equal distances, so that they come from all parts of the text. Prints a note on stderr
// for fewer or shorter sequences.
CurveText curve_text(const PromptSet& prompts, const std::string& name, std::int64_t context, std::int64_t count,
                     const ModelConfig& model, const LazyTokenizer& tokenizer, const CacheWindows& windows);

}  // namespace oscar
