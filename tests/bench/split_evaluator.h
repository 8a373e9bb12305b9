// What a method costs on real tokens: KL to the BF16 cache on text, and the answers to retrieval prompts written by
// program.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cache/kv_method.h"
#include "model/decoder.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

struct ScoreSplit {
  std::vector<std::vector<std::int32_t>> sequences;  // of the text
  struct Retrieval {
    std::vector<std::int32_t> ids;
    std::int64_t answer_start = 0;
  };
  std::vector<Retrieval> prompts;
};

struct Score {
  double text_kl = 0.0;     // mean over positions that see a quantised key, nats
  double text_error = 0.0;  // standard error of text_kl
  double same_top = 1.0;    // share of those positions with the baseline's most probable token
  double solved = 0.0;      // share of the prompts that the BF16 cache solves
};

class SplitEvaluator {
 public:
  // Runs the BF16 baseline and keeps its hidden states. The decoder and the split must outlive the object.
  SplitEvaluator(Decoder& decoder, const ScoreSplit& split, const CacheWindows& windows);
  Score evaluate(const KvMethod& method);
  std::int64_t prompts() const { return static_cast<std::int64_t>(kept_.size()); }  // that BF16 solves

 private:
  Decoder& decoder_;
  const ScoreSplit& split_;
  std::int64_t first_position_;
  std::vector<at::Tensor> text_, answers_;  // baseline hidden states: [T, hidden], [answer, hidden]
  std::vector<std::size_t> kept_;           // prompts that the baseline solves
};

}  // namespace oscar
