#include "pipeline/collect/collect_request.h"

#include <algorithm>

#include "base/errors.h"
#include "base/log.h"
#include "collect/shard.h"
#include "pipeline/common/device_choice.h"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 30000;      // default budget
constexpr std::int64_t kPieceTokens = 4096;  // longest sequence of unpacked prompts

FarPairs parse_far_pairs(const std::string& text) {
  FarPairs pairs;
  if (text == "none") {
    pairs.enabled = false;
    return pairs;
  }
  const CacheWindows windows = parse_windows(text, "--far-pairs");
  pairs.sink = windows.sink, pairs.recent = windows.recent;
  return pairs;
}

// The sequence length before the limits of memory and the model (choose_sequences()).
void choose_length(CollectArguments& a, const ModelConfig& model) {
  CollectOptions& options = a.options;
  const std::int64_t limit = model.max_position;
  const auto within = [&](const char* name, std::int64_t asked) {
    if (limit <= 0 || asked <= limit) return asked;
    log_info(std::string(name) + " " + std::to_string(asked) + " is longer than the model's context; using " +
             std::to_string(limit));
    return limit;
  };
  const std::int64_t made_for = limit > 0 ? std::min(limit, kMostContext) : kPieceTokens;
  options.context = !a.pack ? 0 : a.context > 0 ? a.context : made_for;
  if (limit > 0 && options.context > limit) {
    throw UsageError("--context " + std::to_string(a.context) + " is beyond the model's " + std::to_string(limit) +
                     " positions");
  }
  if (a.seq_len > 0) {
    options.seq_len = within("--seq-len", a.seq_len);
    if (a.pack && a.context == 0) options.context = options.seq_len;
  } else {
    options.seq_len = a.pack ? options.context : within("--seq-len", kPieceTokens);
  }
  if (a.pack) options.seq_len = std::min(options.seq_len, options.context);
}

}  // namespace

void choose_tokens(CollectArguments& a) {
  CollectOptions& options = a.options;
  if (a.tokens_given) return;
  const bool prompts = !a.prompts.empty();  // otherwise the model generates them, token by token
  options.tokens = std::max({kTokens, options.rows, a.pack && prompts ? options.seq_len : 0}) + a.own_beside;
}

DecoderOptions CollectArguments::range_decoding() const {
  DecoderOptions decoding{options.dtype, options.device};
  decoding.products = range_products;
  return decoding;
}

void complete_collect_options(CollectArguments& a, const CommonOptions& common, const Checkpoint& checkpoint) {
  CollectOptions& options = a.options;
  options.overwrite = common.overwrite;
  options.seed = common.seed;
  options.far = parse_far_pairs(a.far_pairs);
  options.shard = parse_shard(a.shard);
  if (const Ranks* ranks = options.ranks; ranks != nullptr) {
    if (options.shard.is_part()) {
      throw UsageError("--shard is for processes that know nothing of each other, and torchrun started " +
                       std::to_string(ranks->count()) + " that share the run: drop it");
    }
    if (std::find(a.prompts.begin(), a.prompts.end(), "-") != a.prompts.end()) {
      throw UsageError("--prompts -: standard input reaches only one rank; pass a file that all ranks can read");
    }
    options.shard = {ranks->rank() + 1, ranks->count()};
  }
  options.tool_version = tool_version();
  a.range_products = narrow_products(common.dtype == "auto", options.device);
  choose_length(a, checkpoint.config());
  choose_tokens(a);
}

}  // namespace oscar
