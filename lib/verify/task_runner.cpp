#include "verify/task_runner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "base/formatted.h"
#include "base/progress.h"
#include "verify/forward.h"

namespace oscar {
namespace {

// For each reference: whether the correct token is the most probable one at each of its positions.
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

void append(std::vector<std::uint8_t>& flat, const FoundAnswers& found) {
  for (const std::vector<bool>& prompt : found) flat.insert(flat.end(), prompt.begin(), prompt.end());
}

// Answers so far, as bytes: the baseline's, then each method's.
struct TaskState {
  const TaskSet& set;
  const VerifyWork* work;
  std::string name;
  FoundAnswers base;
  std::vector<FoundAnswers> solved;
  std::size_t done = 0;  // finished prompts of this rank
  Ranks* ranks;

  TaskState(const TaskSet& s, const std::string& path, std::size_t methods, const VerifyWork* w, Ranks* r)
      : set(s), work(w), name("task-" + s.task + "-" + std::to_string(s.length) + "-" + path), ranks(r) {
    for (const TaskPrompt& p : set.prompts) base.emplace_back(p.answers.size(), false);
    solved.assign(methods, base);
    if (work != nullptr) load();
  }

  std::vector<FoundAnswers*> all() {
    std::vector<FoundAnswers*> list{&base};
    for (FoundAnswers& f : solved) list.push_back(&f);
    return list;
  }

  void load() {
    const std::optional<WorkRecord> record = work->load(name);
    if (!record) return;
    std::int64_t count = 0;
    for (const auto& prompt : base) count += std::ssize(prompt);
    const std::string where = work->file(name).string();
    const double solved_prompts = record_list(*record, where, "prompts", 1).front();
    const std::vector<double>& found =
        record_list(*record, where, "found", static_cast<std::size_t>(count) * all().size());
    if (!(solved_prompts >= 0 && solved_prompts <= static_cast<double>(own_prompts().size()))) {
      damaged_run(where,
                  formatted("%g", solved_prompts) + " prompts are no part of " + std::to_string(set.prompts.size()));
    }
    if (std::any_of(found.begin(), found.end(), [](double answer) { return answer != 0.0 && answer != 1.0; })) {
      damaged_run(where, "an answer is neither found nor not found");
    }
    done = static_cast<std::size_t>(solved_prompts);
    add(std::vector<std::uint8_t>(found.begin(), found.end()).data());
  }

  // Reads one byte of all() per answer: 1 if it was found.
  void add(const std::uint8_t* flat) {
    for (FoundAnswers* f : all()) {
      for (std::vector<bool>& prompt : *f) {
        for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = *flat++ != 0 || prompt[i];
      }
    }
  }

  std::vector<std::uint8_t> flat() {
    std::vector<std::uint8_t> bytes;
    for (const FoundAnswers* f : all()) append(bytes, *f);
    return bytes;
  }

  std::vector<std::size_t> own_prompts() const {
    std::vector<std::size_t> own;
    const std::size_t first = ranks == nullptr ? 0 : static_cast<std::size_t>(ranks->rank());
    const std::size_t step = ranks == nullptr ? 1 : static_cast<std::size_t>(ranks->count());
    for (std::size_t p = first; p < set.prompts.size(); p += step) own.push_back(p);
    return own;
  }

  // Combines the results of all ranks on every rank.
  void share() {
    if (ranks == nullptr) return;
    const std::vector<std::uint8_t> own = flat();
    for (const std::string& bytes : ranks->all_gather({reinterpret_cast<const char*>(own.data()), own.size()})) {
      if (bytes.size() == own.size()) add(reinterpret_cast<const std::uint8_t*>(bytes.data()));
    }
  }

  void save() {
    ++done;
    if (work == nullptr) return;
    const std::vector<std::uint8_t> bytes = flat();
    work->save(name, {{"found", {bytes.begin(), bytes.end()}}, {"prompts", {static_cast<double>(done)}}});
  }
};

}  // namespace

std::vector<TaskScore> run_task(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                                const TaskSet& set, const std::string& path, const VerifyWork* work, Ranks* ranks,
                                const ServedTask& served) {
  TaskState state(set, path, methods.size() + (served ? 1 : 0), work, ranks);
  FoundAnswers& base = state.base;
  std::vector<FoundAnswers>& solved = state.solved;
  const std::vector<std::size_t> own = state.own_prompts();
  Progress progress(set.task + " " + std::to_string(set.length), own.size(), "prompts");
  progress.advance(state.done);
  for (std::size_t at = state.done; at < own.size(); ++at) {
    const std::size_t p = own[at];
    const TaskPrompt& prompt = set.prompts[p];
    SimulatedPrefillAttention exact(baseline);
    base[p] = answered(decoder, prompt, prefill_hidden(decoder, prompt.ids, {&exact})[0]);
    progress.advance(1);
    std::vector<std::unique_ptr<Attention>> owned;
    std::vector<Attention*> attentions;
    std::vector<std::size_t> rows;
    const bool counts = std::any_of(base[p].begin(), base[p].end(), [](bool b) { return b; });
    for (std::size_t m = 0; counts && m < methods.size(); ++m) {
      if (path == "decode") {
        if (!methods[m]->paged()) continue;
        owned.push_back(std::make_unique<PagedAttention>(*methods[m], decoder.config(), decoder.options().device));
      } else if (methods[m]->quantized) {
        owned.push_back(std::make_unique<SimulatedPrefillAttention>(*methods[m]));
      } else {
        solved[m][p] = base[p];  // the baseline itself
        continue;
      }
      attentions.push_back(owned.back().get());
      rows.push_back(m);
    }
    if (counts && served) solved[methods.size()][p] = served(prompt);
    const std::vector<at::Tensor> hidden = prefill_hidden(decoder, prompt.ids, attentions);
    for (std::size_t a = 0; a < rows.size(); ++a) solved[rows[a]][p] = answered(decoder, prompt, hidden[a]);
    state.save();
  }
  progress.finish();
  state.share();
  std::vector<TaskScore> scores;
  for (const FoundAnswers& s : solved) scores.push_back(score_task(set, s, base));
  return scores;
}

}  // namespace oscar
