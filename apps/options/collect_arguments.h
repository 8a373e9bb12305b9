// The options of collecting statistics that oscar-collect and `oscar-fit --model` share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/common_options.h"
#include "checkpoint/checkpoint.h"
#include "statistics/collect.h"
#include "text/prompts.h"

namespace oscar {

struct CollectArguments {
  CollectOptions options;
  std::vector<std::string> prompts;  // files, or "-"
  std::string far_pairs = "64,256", shard = "1/1";
  std::string check_against;  // oscar-collect: predictions of another stack, or empty
  bool tokens_given = false;
  bool pack = true;             // prompts follow one another in sequences as long as the contexts that will be served
  std::int64_t context = 0;     // of --context: those contexts; 0: what the model was made for
  std::int64_t seq_len = 0;     // of --seq-len; 0: not given
  std::int64_t own_beside = 0;  // tokens of the model's own text that come before the budget of the prompts
  // oscar-fit: that the model writes itself beside the prompts; by their budget where none are given.
  std::optional<std::int64_t> own_tokens;
  bool stream_layers = false;  // oscar-fit: passes other than those of collecting keep one layer's weights
  RowSettings rows;
};

// Options of collecting that both commands describe alike, and --prompts, described by `text`.
void add_prompts_option(CLI::App& app, CollectArguments& arguments, const std::string& text);
void add_prompt_options(CLI::App& app, CollectArguments& arguments);

inline constexpr std::int64_t kMostContext = 131072;  // that sequences are packed for where nothing is said

// Fills in what follows from other options: the seed, far pairs, tool version, and a sequence length that the model
// knows. The output, the work directory, the device and the type are the caller's. UsageError.
void complete_collect_options(CollectArguments& arguments, const CommonOptions& common, const Checkpoint& checkpoint);

// The token budget, where --tokens does not say it: at least one full sequence of packed prompts.
void choose_tokens(CollectArguments& arguments);

}  // namespace oscar
