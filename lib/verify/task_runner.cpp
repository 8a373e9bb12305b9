#include "verify/task_runner.h"

#include <ATen/ATen.h>

#include <memory>

#include "base/progress.h"
#include "verify/forward.h"

namespace oscar {
namespace {

// Is the most probable token the right one at each token of the answer?
bool answered(Decoder& decoder, const TaskPrompt& prompt, const at::Tensor& hidden) {
  const std::int64_t count = std::ssize(prompt.ids) - prompt.answer_start;
  const at::Tensor rows = hidden.narrow(0, prompt.answer_start - 1, count);
  const at::Tensor best = decoder.logits(rows).argmax(-1).to(at::kCPU);
  for (std::int64_t i = 0; i < count; ++i) {
    if (best[i].item<std::int64_t>() != prompt.ids[static_cast<std::size_t>(prompt.answer_start + i)]) return false;
  }
  return true;
}

}  // namespace

std::vector<TaskScore> run_task(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                                const TaskSet& set, const std::string& path) {
  std::vector<std::vector<bool>> solved(methods.size(), std::vector<bool>(set.prompts.size(), false));
  std::vector<bool> base(set.prompts.size(), false);
  Progress progress(set.task + " " + std::to_string(set.length), set.prompts.size(), "prompts");
  for (std::size_t p = 0; p < set.prompts.size(); ++p) {
    const TaskPrompt& prompt = set.prompts[p];
    SimulatedPrefillAttention exact(baseline);
    base[p] = answered(decoder, prompt, prefill_hidden(decoder, prompt.ids, {&exact})[0]);
    progress.advance(1);
    if (!base[p]) continue;
    std::vector<std::unique_ptr<Attention>> owned;
    std::vector<Attention*> attentions;
    std::vector<std::size_t> rows;
    for (std::size_t m = 0; m < methods.size(); ++m) {
      if (path == "decode") {
        owned.push_back(std::make_unique<PagedAttention>(*methods[m], decoder.config()));
      } else if (methods[m]->quantised) {
        owned.push_back(std::make_unique<SimulatedPrefillAttention>(*methods[m]));
      } else {
        solved[m][p] = true;  // the baseline itself
        continue;
      }
      attentions.push_back(owned.back().get());
      rows.push_back(m);
    }
    const std::vector<at::Tensor> hidden = prefill_hidden(decoder, prompt.ids, attentions);
    for (std::size_t a = 0; a < rows.size(); ++a) solved[rows[a]][p] = answered(decoder, prompt, hidden[a]);
  }
  progress.finish();
  std::vector<TaskScore> scores;
  for (const std::vector<bool>& s : solved) scores.push_back(score_task(set, s, base));
  return scores;
}

}  // namespace oscar
