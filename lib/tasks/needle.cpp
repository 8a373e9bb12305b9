#include <algorithm>
#include <cmath>

#include "tasks/draft.h"

namespace oscar {
namespace {

constexpr const char* kIntroduction =
    "One sentence of the following text gives a special magic number. Read with care, because you will be asked for "
    "it.\n";
constexpr const char* kSeveralIntroduction =
    "Some sentences of the following text give special magic numbers. Read with care, because you will be asked for "
    "them.\n";
constexpr std::size_t kSeveral = 4;

struct Needle {
  std::string key, value;
  std::string sentence() const { return "The special magic number for " + key + " is: " + value + ". "; }
};

// Draws `count` needles; keys are distinct unless all share one.
std::vector<Needle> draw_needles(TaskRandom& random, std::size_t count, bool one_key) {
  std::vector<Needle> needles;
  while (needles.size() < count) {
    const std::string key = one_key && !needles.empty() ? needles[0].key : random.key();
    const bool used = std::any_of(needles.begin(), needles.end(), [&](const Needle& n) { return n.key == key; });
    if (used && !one_key) continue;
    needles.push_back({key, random.digits(7)});
  }
  return needles;
}

std::vector<std::string> sentences_of(const std::vector<Needle>& needles) {
  std::vector<std::string> list;
  for (const Needle& n : needles) list.push_back(n.sentence());
  return list;
}

std::string question(const std::string& key) {
  return "What is the special magic number for " + key + "? The special magic number for " + key + " is:";
}

std::vector<AnswerPiece> value_list(const std::vector<Needle>& needles) {
  std::vector<AnswerPiece> pieces;
  for (const Needle& n : needles) pieces.push_back({pieces.empty() ? " " : ", ", n.value});
  return pieces;
}

template <typename Draft>
TaskSet build(const std::string& task, std::int64_t length, std::int64_t prompts, std::uint64_t seed, std::int64_t step,
              const Tokenizer& tokenizer, const Draft& draft) {
  TaskSet set{task, length, {}};
  for (std::int64_t i = 0; i < prompts; ++i) {
    const double depth = spread_depth(i, prompts);
    set.prompts.push_back(fit_draft(
        task, length, step,
        [&](std::int64_t units) {
          TaskRandom random(seed, length, i);
          return draft(random, units, depth);
        },
        tokenizer));
  }
  return set;
}

}  // namespace

double spread_depth(std::int64_t prompt, std::int64_t prompts) {
  return prompts > 1 ? static_cast<double>(prompt) / static_cast<double>(prompts - 1) : 0.5;
}

TaskSet make_needle_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer) {
  return build(
      "niah", length, prompts, seed, 5, tokenizer, [](TaskRandom& random, std::int64_t sentences, double depth) {
        const std::vector<Needle> needle = draw_needles(random, 1, false);
        return TaskDraft{kIntroduction + noise_with(sentences, sentences_of(needle), {depth}) + question(needle[0].key),
                         value_list(needle), depth};
      });
}

TaskSet make_multikey_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer) {
  return build("niah-multikey", length, prompts, seed, 5, tokenizer,
               [](TaskRandom& random, std::int64_t sentences, double depth) {
                 // The haystack consists of needles. Keys of the others get a number, so that any count of them is
                 // distinct.
                 const std::vector<Needle> asked = draw_needles(random, 1, false);
                 const std::int64_t place = std::llround(depth * static_cast<double>(sentences));
                 std::string text = kSeveralIntroduction;
                 for (std::int64_t s = 0; s <= sentences; ++s) {
                   if (s == place) text += asked[0].sentence();
                   if (s == sentences) break;
                   const std::string key = random.key() + " " + std::to_string(s + 1);
                   text += Needle{key, random.digits(7)}.sentence();
                 }
                 return TaskDraft{text + question(asked[0].key), value_list(asked), depth};
               });
}

TaskSet make_multivalue_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed,
                             const Tokenizer& tokenizer) {
  return build("niah-multivalue", length, prompts, seed, 5, tokenizer,
               [](TaskRandom& random, std::int64_t sentences, double depth) {
                 const std::vector<Needle> needles = draw_needles(random, kSeveral, true);
                 std::vector<double> depths{depth};
                 while (depths.size() < kSeveral) depths.push_back(static_cast<double>(random.below(1000)) / 999.0);
                 std::sort(depths.begin(), depths.end());
                 const std::string& key = needles[0].key;
                 return TaskDraft{kSeveralIntroduction + noise_with(sentences, sentences_of(needles), depths) +
                                      "What are the four special magic numbers for " + key +
                                      ", in the order of the text? The special magic numbers for " + key + " are:",
                                  value_list(needles), depth};
               });
}

TaskSet make_multiquery_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed,
                             const Tokenizer& tokenizer) {
  return build(
      "niah-multiquery", length, prompts, seed, 5, tokenizer,
      [](TaskRandom& random, std::int64_t sentences, double depth) {
        const std::vector<Needle> needles = draw_needles(random, kSeveral, false);
        std::vector<double> depths{depth};
        while (depths.size() < kSeveral) depths.push_back(static_cast<double>(random.below(1000)) / 999.0);
        std::string keys;
        std::vector<AnswerPiece> answer;
        for (const Needle& n : needles) {
          keys += (keys.empty() ? "" : ", ") + n.key;
          answer.push_back({(answer.empty() ? " The special magic number for " : ". The special magic number for ") +
                                n.key + " is: ",
                            n.value});
        }
        return TaskDraft{kSeveralIntroduction + noise_with(sentences, sentences_of(needles), depths) +
                             "What are the special magic numbers for " + keys + "?",
                         answer, depth};
      });
}

}  // namespace oscar
