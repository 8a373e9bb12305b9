// A request to collect statistics, for oscar-collect and `oscar-fit --model`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "collect/collect.h"
#include "model/decoder.h"
#include "pipeline/common/common_options.h"
#include "text/prompts.h"

namespace oscar {

struct CollectArguments {
  CollectOptions options;
  std::vector<std::string> prompts;  // files, or "-"
  std::string far_pairs = "64,256", shard = "1/1";
  std::string check_against;  // oscar-collect: predictions of another stack, or empty
  bool tokens_given = false;
  bool pack = true;             // prompts are concatenated to sequences as long as the contexts that will be served
  std::int64_t context = 0;     // from --context: those contexts; 0: the model's own context
  std::int64_t seq_len = 0;     // from --seq-len; 0: not given
  std::int64_t own_beside = 0;  // tokens of self-generated text that precede the budget of the prompts
  // oscar-fit: tokens that the model generates beside the prompts; without prompts, their budget.
  std::optional<std::int64_t> own_tokens;
  bool stream_layers = false;  // oscar-fit: passes other than collecting keep only one layer's weights
  RowSettings rows;
  std::optional<at::ScalarType> range_products;  // narrow_products() of the passes that try the reading range

  // How those passes run.
  DecoderOptions range_decoding() const;
};

inline constexpr std::int64_t kMostContext = 131072;  // default maximum for packed sequences

// Fills in values that follow from other options: the seed, the windows of --far-pairs, the tool version, and a
// sequence length that the model supports. The caller sets output, work directory, device and dtype. UsageError.
void complete_collect_options(CollectArguments& arguments, const CommonOptions& common, const Checkpoint& checkpoint);

// Sets the token budget if --tokens does not give it: at least one full sequence of packed prompts.
void choose_tokens(CollectArguments& arguments);

}  // namespace oscar
