#include "curves/curve_text.h"

#include <algorithm>

#include "base/log.h"
#include "text/used_text.h"

namespace oscar {

CurveText curve_text(const PromptSet& prompts, const std::string& name, std::int64_t context, std::int64_t count,
                     std::int64_t max_position, const Tokenizer& tokenizer, const CacheWindows& windows) {
  std::vector<std::int32_t> all;
  for (const Prompt& prompt : prompts.prompts) all.insert(all.end(), prompt.ids.begin(), prompt.ids.end());
  SequenceOptions cut;
  cut.context = max_position > 0 ? std::min(context, max_position) : context;
  cut.max_position = max_position;
  cut.prefix = leading_special_tokens(tokenizer);
  cut.text_name = name;
  SequenceSet set = cut_sequences(all, cut, windows);
  const auto found = std::ssize(set.sequences);
  if (found < count || set.context < context) {
    log_warning(name + " is enough for " + std::to_string(std::min(found, count)) + " sequences of " +
                std::to_string(set.context) + " tokens; " + std::to_string(count) + " of " + std::to_string(context) +
                " were asked for, and with less text the curves have larger errors");
  }
  CurveText text;
  const std::int64_t taken = std::min<std::int64_t>(found, count);
  for (std::int64_t i = 0; i < taken; ++i) {
    text.sequences.push_back(std::move(set.sequences[static_cast<std::size_t>(i * found / taken)]));
  }
  text.record = {{"name", name}, {"sha256", prompts.sha256}};
  text.hashes = used_text_record(text.sequences);
  text.hashes["sha256"] = prompts.sha256;
  return text;
}

}  // namespace oscar
