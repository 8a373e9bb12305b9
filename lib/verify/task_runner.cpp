#include "verify/task_runner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "base/progress.h"
#include "verify/forward.h"

namespace oscar {
namespace {

// For each reference: is the most probable token the right one at each of its tokens?
std::vector<bool> answered(Decoder& decoder, const TaskPrompt& prompt, const at::Tensor& hidden) {
  std::vector<bool> found;
  for (const AnswerSpan& span : prompt.answers) {
    const std::int64_t count = span.end - span.begin;
    const at::Tensor best = decoder.logits(hidden.narrow(0, span.begin - 1, count)).argmax(-1).to(at::kCPU);
    bool right = true;
    for (std::int64_t i = 0; i < count && right; ++i) {
      right = best[i].item<std::int64_t>() == prompt.ids[static_cast<std::size_t>(span.begin + i)];
    }
    found.push_back(right);
  }
  return found;
}

}  // namespace

std::vector<TaskScore> run_task(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                                const TaskSet& set, const std::string& path) {
  FoundAnswers base;
  for (const TaskPrompt& p : set.prompts) base.emplace_back(p.answers.size(), false);
  std::vector<FoundAnswers> solved(methods.size(), base);
  Progress progress(set.task + " " + std::to_string(set.length), set.prompts.size(), "prompts");
  for (std::size_t p = 0; p < set.prompts.size(); ++p) {
    const TaskPrompt& prompt = set.prompts[p];
    SimulatedPrefillAttention exact(baseline);
    base[p] = answered(decoder, prompt, prefill_hidden(decoder, prompt.ids, {&exact})[0]);
    progress.advance(1);
    if (std::none_of(base[p].begin(), base[p].end(), [](bool b) { return b; })) continue;
    std::vector<std::unique_ptr<Attention>> owned;
    std::vector<Attention*> attentions;
    std::vector<std::size_t> rows;
    for (std::size_t m = 0; m < methods.size(); ++m) {
      if (path == "decode") {
        if (!methods[m]->paged()) continue;
        owned.push_back(std::make_unique<PagedAttention>(*methods[m], decoder.config(), decoder.options().device));
      } else if (methods[m]->quantised) {
        owned.push_back(std::make_unique<SimulatedPrefillAttention>(*methods[m]));
      } else {
        solved[m][p] = base[p];  // the baseline itself
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
  for (const FoundAnswers& s : solved) scores.push_back(score_task(set, s, base));
  return scores;
}

}  // namespace oscar
