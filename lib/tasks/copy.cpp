#include <cmath>

#include "tasks/builders.h"
#include "tasks/draft.h"

namespace oscar {

TaskSet make_copy_task(std::int64_t length, std::int64_t prompts, std::uint64_t seed, const Tokenizer& tokenizer) {
  TaskSet set{"copy", length, {}};
  for (std::int64_t i = 0; i < prompts; ++i) {
    const double depth = spread_depth(i, prompts);
    const auto draft = [&](std::int64_t records) {
      TaskRandom random(seed, length, i);
      const std::int64_t asked = std::llround(depth * static_cast<double>(records));
      const std::string item = random.key(), code = random.digits(8);
      std::string text = "The store keeps the records below. You will be asked to repeat one of them word for word.\n";
      std::string record;
      for (std::int64_t r = 0; r <= records; ++r) {
        const bool wanted = r == asked;
        // Every third record is a near duplicate: the same item with two changed digits.
        std::string number = wanted || r % 3 == 0 ? code : random.digits(8);
        if (!wanted && r % 3 == 0) {
          const std::size_t at = random.below(7) + 1;
          number[at] = static_cast<char>('0' + (number[at] - '0' + 1 + static_cast<int>(random.below(9))) % 10);
        }
        const std::string name = wanted || r % 3 == 0 ? item : random.key();
        const std::string line = name + ", shelf " + std::to_string(random.below(90) + 10) + ", number " + number;
        if (wanted) record = line;
        text += "Record " + std::to_string(r + 1) + ": " + line + ".\n";
      }
      const std::string place = std::to_string(asked + 1);
      return TaskDraft{text + "Repeat record " + place + ".\nRecord " + place + ":", {{" ", record}}, depth};
    };
    set.prompts.push_back(fit_draft(set.task, length, 6, draft, tokenizer));
  }
  return set;
}

}  // namespace oscar
