#include <algorithm>

#include "tasks/draft.h"

namespace oscar {
namespace {

constexpr std::size_t kHops = 4;
constexpr const char* kExample =
    "Follow the assignments of variables in the text below. Example: VAR QXZAB = 90210. VAR MNTRE = VAR QXZAB. Which "
    "variables hold the value 90210? In order of assignment: QXZAB, MNTRE.\n";

}  // namespace

TaskSet make_tracking_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer) {
  TaskSet set{"vt", length, {}};
  for (std::int64_t i = 0; i < prompts; ++i) {
    const auto draft = [&](std::int64_t sentences) {
      TaskRandom random(seed, length, i);
      const std::string value = random.digits(5);
      std::vector<std::string> names, inserts;
      std::vector<double> depths{spread_depth(i, prompts)};
      while (names.size() <= kHops) {
        const std::string name = random.letters(5);
        if (std::find(names.begin(), names.end(), name) != names.end()) continue;
        inserts.push_back("VAR " + name + " = " + (names.empty() ? value : "VAR " + names.back()) + ". ");
        names.push_back(name);
        if (depths.size() < names.size()) depths.push_back(static_cast<double>(random.below(1000)) / 999.0);
      }
      std::sort(depths.begin(), depths.end());  // keep the assignments in order
      TaskDraft d{kExample + noise_with(sentences, inserts, depths) + "Which variables hold the value " + value +
                      "? In order of assignment:",
                  {},
                  spread_depth(i, prompts)};
      for (const std::string& name : names) d.answer.push_back({d.answer.empty() ? " " : ", ", name});
      return d;
    };
    set.prompts.push_back(fit_draft(set.task, length, 5, draft, tokenizer));
  }
  return set;
}

}  // namespace oscar
