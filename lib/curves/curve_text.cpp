#include "curves/curve_text.h"

#include <algorithm>

#include "base/log.h"
#include "text/text_hashes.h"

namespace oscar {

CurveText curve_text(const PromptSet& prompts, const std::string& name, std::int64_t context, std::int64_t count,
                     const ModelConfig& model, const LazyTokenizer& tokenizer, const CacheWindows& windows) {
  std::vector<std::int32_t> all;
  for (const Prompt& prompt : prompts.prompts) all.insert(all.end(), prompt.ids.begin(), prompt.ids.end());
  const bool from_ids = std::all_of(prompts.prompts.begin(), prompts.prompts.end(),
                                    [](const Prompt& prompt) { return prompt.kind == "input_ids"; });
  const std::int64_t max_position = model.max_position;
  SequenceOptions cut{.context = max_position > 0 ? std::min(context, max_position) : context,
                      .max_position = max_position,
                      .prefix = from_ids ? leading_bos(all, model.bos_token) : leading_special_tokens(tokenizer.get()),
                      .text_name = name};
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
