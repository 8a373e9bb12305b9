#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "tasks/builders.h"
#include "tasks/draft.h"

namespace oscar {
namespace {

constexpr std::int64_t kCommonWords = 10, kLongPrompt = 4096;
constexpr double kZipf = 2.0;

void shuffle(std::vector<std::string>& list, TaskRandom& random) {
  for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.below(i)]);
}

std::string new_word(TaskRandom& random, std::set<std::string>& used) {
  std::string word = random.word();
  // Few syllables make few words, so a long list needs longer words.
  while (!used.insert(word).second) word += random.word();
  return word;
}

}  // namespace

TaskSet make_common_words_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed,
                               const Tokenizer& tokenizer) {
  TaskSet set{"cwe", length, {}};
  const int often = length < kLongPrompt ? 6 : 30, rarely = length < kLongPrompt ? 1 : 3;
  for (std::int64_t i = 0; i < prompts; ++i) {
    const auto draft = [&](std::int64_t others) {
      TaskRandom random(seed, length, i);
      std::set<std::string> used;
      std::vector<std::string> common, list;
      for (std::int64_t w = 0; w < kCommonWords + others; ++w) {
        const std::string word = new_word(random, used);
        if (w < kCommonWords) common.push_back(word);
        for (int n = 0; n < (w < kCommonWords ? often : rarely); ++n) list.push_back(word);
      }
      shuffle(list, random);
      std::string text = "Below is a numbered list of words. Some words appear more often than others.\n";
      for (std::size_t n = 0; n < list.size(); ++n) text += std::to_string(n + 1) + ". " + list[n] + " ";
      // References in order of first appearance, as the question requests.
      std::sort(common.begin(), common.end(), [&](const std::string& a, const std::string& b) {
        return std::find(list.begin(), list.end(), a) < std::find(list.begin(), list.end(), b);
      });
      TaskDraft d{text +
                      "\nWhich ten words are the most common in the list, in the order in which they first appear? "
                      "The ten most common words are:",
                  {},
                  0.5};
      for (const std::string& word : common) d.answer.push_back({d.answer.empty() ? " " : ", ", word});
      return d;
    };
    set.prompts.push_back(fit_draft(set.task, length, 8, draft, tokenizer));
  }
  return set;
}

TaskSet make_frequent_words_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed,
                                 const Tokenizer& tokenizer) {
  TaskSet set{"fwe", length, {}};
  for (std::int64_t i = 0; i < prompts; ++i) {
    const auto draft = [&](std::int64_t words) {
      TaskRandom random(seed, length, i);
      // Rank r has weight r^-2: r = 1: 61 %, 2: 15 %, 3: 7 %, ... Rank 1 is dots, which are not a word.
      constexpr int kRanks = 50;
      std::vector<std::string> coded;
      while (coded.size() < kRanks) {
        std::string word = random.letters(6);
        std::transform(word.begin(), word.end(), word.begin(), [](char c) { return static_cast<char>(c - 'A' + 'a'); });
        coded.push_back(word);
      }
      double total = 0;
      for (int r = 1; r <= kRanks; ++r) total += std::pow(r, -kZipf);
      std::vector<std::string> list;
      for (int r = 1; r <= kRanks; ++r) {
        // At least 4, 3 and 2 for the requested words, so that they lead even in a short text.
        const auto share = std::llround(static_cast<double>(words) * std::pow(r, -kZipf) / total);
        const std::int64_t count = r >= 2 && r <= 4 ? std::max<std::int64_t>(share, 6 - r)
                                                    : std::min<std::int64_t>(share, r == 1 ? share : 1 + share);
        for (std::int64_t n = 0; n < count; ++n) list.push_back(r == 1 ? "...." : coded[static_cast<std::size_t>(r)]);
      }
      shuffle(list, random);
      std::string text =
          "The following text is in a secret code. The dots mean nothing. Find the coded words that "
          "appear most often.\n";
      for (const std::string& word : list) text += word + " ";
      TaskDraft d{
          text + "\nWhich three coded words appear most often, the most frequent one first? The three words are:",
          {},
          0.5};
      for (std::size_t r = 2; r <= 4; ++r) d.answer.push_back({d.answer.empty() ? " " : ", ", coded[r]});
      return d;
    };
    set.prompts.push_back(fit_draft(set.task, length, 40, draft, tokenizer));
  }
  return set;
}

}  // namespace oscar
