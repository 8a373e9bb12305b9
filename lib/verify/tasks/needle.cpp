#include "verify/tasks/needle.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.h"
#include "base/random.h"

namespace oscar {
namespace {

constexpr const char* kIntroduction =
    "One sentence of the following text gives a special magic number. Read with care, because you will be asked for "
    "it.\n";
constexpr std::array<const char*, 5> kNoise = {
    "The river runs slowly past the mill.", "A cart stands empty beside the gate.",
    "Two crows sit on the fence and wait.", "Nobody is in the field this morning.",
    "The wind turns and it begins to rain."};
constexpr std::array<const char*, 16> kAdjectives = {"gentle", "copper",  "quiet",   "amber",   "narrow",   "silver",
                                                     "early",  "hollow",  "crimson", "patient", "northern", "wooden",
                                                     "bright", "distant", "velvet",  "ancient"};
constexpr std::array<const char*, 16> kNouns = {"harbour", "lantern", "meadow", "window", "bridge", "orchard",
                                                "valley",  "anchor",  "garden", "kettle", "ladder", "mirror",
                                                "pebble",  "saddle",  "ticket", "violin"};

struct Needle {
  std::string key, value;
};

Needle draw_needle(std::uint64_t seed, std::uint64_t index) {
  const auto pick = [&](std::uint64_t n, std::uint64_t of) { return random_bits(seed, index, n) % of; };
  return {std::string(kAdjectives[pick(0, kAdjectives.size())]) + " " + kNouns[pick(1, kNouns.size())],
          std::to_string(1000000 + pick(2, 9000000))};
}

// The text before the answer, with the needle before sentence round(depth * sentences).
std::string prompt_text(const Needle& needle, std::int64_t sentences, double depth) {
  const std::int64_t place = std::llround(depth * static_cast<double>(sentences));
  const std::string statement = "The special magic number for " + needle.key + " is: ";
  std::string text = kIntroduction;
  for (std::int64_t s = 0; s <= sentences; ++s) {
    if (s == place) text += statement + needle.value + ". ";
    if (s < sentences) text += std::string(kNoise[static_cast<std::size_t>(s) % kNoise.size()]) + " ";
  }
  text +=
      "What is the special magic number for " + needle.key + "? The special magic number for " + needle.key + " is:";
  return text;
}

// Prompt and answer are encoded together, as they would stand in a text; the answer begins where the encoding of the
// prompt alone ends or first differs.
TaskPrompt encode_prompt(const Needle& needle, std::int64_t sentences, double depth, const Tokenizer& tokenizer) {
  const std::string text = prompt_text(needle, sentences, depth);
  const std::vector<std::int32_t> alone = tokenizer.encode(text, true);
  std::vector<std::int32_t> ids = tokenizer.encode(text + " " + needle.value, true);
  const std::int64_t start = std::mismatch(ids.begin(), ids.end(), alone.begin(), alone.end()).first - ids.begin();
  return {std::move(ids), start, depth};
}

std::int64_t size_of(const TaskPrompt& prompt) { return static_cast<std::int64_t>(prompt.ids.size()); }

// The longest haystack with which the prompt has at most `length` tokens.
TaskPrompt fit_prompt(const Needle& needle, std::int64_t length, double depth, const Tokenizer& tokenizer) {
  TaskPrompt best = encode_prompt(needle, 0, depth, tokenizer);
  const std::int64_t bare = size_of(best);
  const std::int64_t cycle = size_of(encode_prompt(needle, 5, depth, tokenizer)) - bare;  // tokens of five sentences
  if (size_of(best) + cycle > length || cycle <= 0) {
    throw UsageError("a needle prompt needs at least " + std::to_string(bare + cycle) + " tokens, and the length is " +
                     std::to_string(length));
  }
  std::int64_t low = 0, high = 5 * (length / cycle + 2);  // low fits, high does not
  while (high - low > 1) {
    // The sentences are short and nearly equal: a guess from the average lands within a few sentences.
    std::int64_t middle = std::clamp(low + 5 * (length - size_of(best)) / cycle, low + 1, high - 1);
    TaskPrompt candidate = encode_prompt(needle, middle, depth, tokenizer);
    if (size_of(candidate) <= length) {
      low = middle;
      best = std::move(candidate);
    } else {
      high = middle;
    }
  }
  return best;
}

}  // namespace

TaskSet make_needle_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer) {
  TaskSet set{"niah", length, {}};
  for (std::int64_t i = 0; i < prompts; ++i) {
    const double depth = prompts > 1 ? static_cast<double>(i) / static_cast<double>(prompts - 1) : 0.5;
    const Needle needle = draw_needle(mix64(seed ^ static_cast<std::uint64_t>(length)), static_cast<std::uint64_t>(i));
    set.prompts.push_back(fit_prompt(needle, length, depth, tokenizer));
  }
  return set;
}

}  // namespace oscar
