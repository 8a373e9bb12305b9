#include "text/sequences.h"

#include <algorithm>

#include "base/errors.h"

namespace oscar {
namespace {

// Minimum number of positions after the windows in each sequence, so that there is something to score.
constexpr std::int64_t kLeastScored = 16;

std::int64_t least_context(const CacheWindows& windows) { return first_scored_position(windows) + kLeastScored; }

std::string window_text(const CacheWindows& windows) {
  return "BF16 windows " + std::to_string(windows.sink) + " + " + std::to_string(windows.recent);
}

}  // namespace

void check_sequence_options(const SequenceOptions& options, const CacheWindows& windows) {
  const std::int64_t least = least_context(windows);
  if (options.context < least) {
    throw UsageError("--context " + std::to_string(options.context) + " never leaves the " + window_text(windows) +
                     ": choose at least " + std::to_string(least));
  }
  if (options.max_position > 0 && options.context > options.max_position) {
    throw UsageError("--context " + std::to_string(options.context) + " is beyond the model's " +
                     std::to_string(options.max_position) + " positions");
  }
  if (options.max_tokens < 0 || options.max_sequences < 0) {
    throw UsageError("--tokens and --max-sequences are numbers of tokens and sequences, 0 for all");
  }
}

SequenceSet cut_sequences(const std::vector<std::int32_t>& document, const SequenceOptions& options,
                          const CacheWindows& windows) {
  check_sequence_options(options, windows);
  const std::int64_t least = least_context(windows);
  // Text encoded with special tokens already has the prefix.
  const bool begins = document.size() >= options.prefix.size() &&
                      std::equal(options.prefix.begin(), options.prefix.end(), document.begin());
  const std::vector<std::int32_t> text(
      document.begin() + (begins ? static_cast<std::ptrdiff_t>(options.prefix.size()) : 0), document.end());
  SequenceSet set;
  set.text_tokens = static_cast<std::int64_t>(text.size());
  const std::int64_t budget = options.max_tokens > 0 ? std::min(options.max_tokens, set.text_tokens) : set.text_tokens;
  const auto prefix = static_cast<std::int64_t>(options.prefix.size());
  const std::int64_t longest = std::min(options.context, budget + prefix);
  if (longest < least) {
    throw InputError(options.text_name + " has " + std::to_string(budget) + " tokens, too few to leave the " +
                     window_text(windows) + ": give a text of at least " + std::to_string(least) + " tokens");
  }
  set.context = longest;
  const std::int64_t body = set.context - prefix;  // text tokens per sequence
  std::int64_t count = budget / body;
  if (options.max_sequences > 0) count = std::min(count, options.max_sequences);
  for (std::int64_t s = 0; s < count; ++s) {
    std::vector<std::int32_t> sequence = options.prefix;
    sequence.insert(sequence.end(), text.begin() + s * body, text.begin() + (s + 1) * body);
    set.sequences.push_back(std::move(sequence));
  }
  set.unused_tokens = set.text_tokens - count * body;
  return set;
}

std::vector<std::int32_t> SequenceSet::used(std::size_t prefix) const {
  std::vector<std::int32_t> ids;
  for (const std::vector<std::int32_t>& s : sequences) {
    ids.insert(ids.end(), s.begin() + static_cast<std::ptrdiff_t>(prefix), s.end());
  }
  return ids;
}

std::vector<std::int32_t> leading_special_tokens(const Tokenizer& tokenizer) {
  const std::vector<std::int32_t> plain = tokenizer.encode("a", false), special = tokenizer.encode("a", true);
  const auto body = std::search(special.begin(), special.end(), plain.begin(), plain.end());
  return {special.begin(), body == special.end() ? special.begin() : body};
}

std::vector<std::int32_t> leading_bos(const std::vector<std::int32_t>& ids, std::int64_t bos) {
  if (bos < 0 || ids.empty() || ids.front() != bos) return {};
  return {ids.front()};
}

}  // namespace oscar
