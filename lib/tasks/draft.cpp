#include "tasks/draft.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.h"
#include "base/random.h"

namespace oscar {
namespace {

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

std::int64_t shared_prefix(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

TaskPrompt encode_draft(const TaskDraft& draft, const Tokenizer& tokenizer) {
  std::string text = draft.prompt;
  std::vector<std::string> before, behind;  // text before each reference, and including it
  for (const AnswerPiece& piece : draft.answer) {
    text += piece.before;
    // A space before a word is part of its first token.
    before.push_back(text.substr(0, text.find_last_not_of(' ') + 1));
    text += piece.reference;
    behind.push_back(text);
  }
  TaskPrompt prompt{tokenizer.encode(text, true), {}, draft.depth};
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::int64_t begin = shared_prefix(prompt.ids, tokenizer.encode(before[i], true));
    const std::int64_t end =
        i + 1 == before.size() ? std::ssize(prompt.ids) : shared_prefix(prompt.ids, tokenizer.encode(behind[i], true));
    prompt.answers.push_back({begin, std::max(end, begin + 1)});
  }
  return prompt;
}

TaskPrompt fit_draft(const std::string& task, std::int64_t length, std::int64_t step,
                     const std::function<TaskDraft(std::int64_t)>& draft, const Tokenizer& tokenizer) {
  const auto encode = [&](std::int64_t units) { return encode_draft(draft(units), tokenizer); };
  TaskPrompt best = encode(0);
  const std::int64_t bare = std::ssize(best.ids);
  const std::int64_t cycle = std::ssize(encode(step).ids) - bare;  // tokens of `step` units
  if (bare + cycle > length || cycle <= 0) {
    throw UsageError("a prompt of task '" + task + "' needs at least " + std::to_string(bare + cycle) +
                     " tokens, and the length is " + std::to_string(length));
  }
  std::int64_t low = 0, high = step * (2 * length / cycle + 2);  // low fits, high does not
  while (high - low > 1) {
    // Units are nearly equal, so a guess from the average is off by only a few.
    const std::int64_t guess = low + step * (length - std::ssize(best.ids)) / cycle;
    const std::int64_t middle = std::clamp(guess, low + 1, high - 1);
    TaskPrompt candidate = encode(middle);
    if (std::ssize(candidate.ids) <= length) {
      low = middle;
      best = std::move(candidate);
    } else {
      high = middle;
    }
  }
  return best;
}

TaskRandom::TaskRandom(std::uint64_t seed, std::int64_t length, std::int64_t prompt)
    : seed_(mix64(seed ^ static_cast<std::uint64_t>(length))), stream_(static_cast<std::uint64_t>(prompt)) {}

std::uint64_t TaskRandom::below(std::uint64_t count) { return random_bits(seed_, stream_, next_++) % count; }

std::string TaskRandom::digits(int count) {
  std::string text(1, static_cast<char>('1' + below(9)));
  while (std::ssize(text) < count) text += static_cast<char>('0' + below(10));
  return text;
}

std::string TaskRandom::letters(int count) {
  std::string text;
  while (std::ssize(text) < count) text += static_cast<char>('A' + below(26));
  return text;
}

std::string TaskRandom::key() {
  const std::string adjective = kAdjectives[below(kAdjectives.size())];
  return adjective + " " + kNouns[below(kNouns.size())];
}

std::string noise_sentence(std::int64_t index) {
  return std::string(kNoise[static_cast<std::size_t>(index) % kNoise.size()]) + " ";
}

std::string noise_with(std::int64_t sentences, const std::vector<std::string>& inserts,
                       const std::vector<double>& depths) {
  std::string text;
  for (std::int64_t s = 0; s <= sentences; ++s) {
    for (std::size_t i = 0; i < inserts.size(); ++i) {
      if (std::llround(depths[i] * static_cast<double>(sentences)) == s) text += inserts[i];
    }
    if (s < sentences) text += noise_sentence(s);
  }
  return text;
}

}  // namespace oscar
