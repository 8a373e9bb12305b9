#include "pipeline/fit/held_out.h"

#include <algorithm>
#include <numeric>

#include "pipeline/fit/fit_curves.h"

namespace oscar {
namespace {

constexpr std::int64_t kSequences = 8, kLeastSequences = 4;
constexpr std::int64_t kLongest = 32768, kShortest = 1024;
constexpr double kMostCpuProducts = 6e12;  // of two passes over all sequences

std::int64_t tokens_of(const PromptSet& prompts, const std::vector<std::size_t>& places) {
  return std::accumulate(places.begin(), places.end(), std::int64_t{0},
                         [&](std::int64_t sum, std::size_t i) { return sum + std::ssize(prompts.prompts[i].ids); });
}

// Products of weights, logits and attention of two passes.
double products(const ModelConfig& c, const HeldOutShape& shape) {
  const double layers = static_cast<double>(c.layers), hidden = static_cast<double>(c.hidden);
  const double heads = static_cast<double>(c.query_heads * c.head_dim);
  const double attention = heads * static_cast<double>(shape.context);  // half of them, for keys and for values
  const double token = layers * (layer_products(c) + attention) + hidden * static_cast<double>(c.vocabulary);
  return 2.0 * static_cast<double>(shape.tokens()) * token;
}

// How many tokens at the end of each prompt are taken.
class Selection {
 public:
  explicit Selection(const PromptSet& prompts) : prompts_(prompts), taken_(prompts.prompts.size(), 0) {}

  std::int64_t tokens() const { return std::accumulate(taken_.begin(), taken_.end(), std::int64_t{0}); }

  // Whole prompts at equal distances in `places`, for about `goal` tokens; only the end of one that is longer than the
  // rest of the goal, where `cuts`.
  void spread(const std::vector<std::size_t>& places, std::int64_t goal, bool cuts) {
    const double rate =
        static_cast<double>(goal) / static_cast<double>(std::max<std::int64_t>(1, tokens_of(prompts_, places)));
    double due = 0.0;
    std::int64_t got = 0;
    for (const std::size_t i : places) {
      const std::int64_t length = std::ssize(prompts_.prompts[i].ids);
      due += rate * static_cast<double>(length);
      if (got >= goal || due - static_cast<double>(got) < 0.5 * static_cast<double>(length)) continue;
      taken_[i] = cuts ? std::min(length, goal - got) : length;
      got += taken_[i];
    }
  }

  // The end of the longest prompt, at most half of it.
  void cut_longest(std::int64_t goal) {
    const auto longest = std::max_element(prompts_.prompts.begin(), prompts_.prompts.end(),
                                          [](const Prompt& a, const Prompt& b) { return a.ids.size() < b.ids.size(); });
    std::int64_t& taken = taken_[static_cast<std::size_t>(longest - prompts_.prompts.begin())];
    if (taken == 0) taken = std::min(goal, std::ssize(longest->ids) / 2);
  }

  // The end of one prompt, at most `most` tokens, as far as the goal asks for it.
  void cut(std::size_t i, std::int64_t most, std::int64_t goal) {
    taken_[i] = std::clamp(taken_[i] + goal - tokens(), taken_[i], std::max(taken_[i], most));
  }

  std::int64_t of(std::size_t i) const { return taken_[i]; }

 private:
  const PromptSet& prompts_;
  std::vector<std::int64_t> taken_;
};

}  // namespace

HeldOutShape wanted_shape(const ModelConfig& model, c10::Device device, std::int64_t served) {
  HeldOutShape shape{kSequences, std::max(std::min(served, kLongest), std::int64_t{1})};
  if (!device.is_cpu()) return shape;
  const auto fits = [&](std::int64_t sequences) {
    return products(model, {sequences, shape.context}) <= kMostCpuProducts;
  };
  while (shape.context > kShortest && !fits(kLeastSequences)) shape.context = std::max(shape.context / 2, kShortest);
  while (shape.sequences > kLeastSequences && !fits(shape.sequences)) --shape.sequences;
  return shape;
}

std::optional<HeldOutShape> shape_within(const HeldOutShape& wanted, std::int64_t tokens, const CacheWindows& windows) {
  // All sequences, if they are not too short; else fewer of that length, and shorter ones in the end.
  HeldOutShape shape{wanted.sequences, std::min(wanted.context, tokens / std::max<std::int64_t>(wanted.sequences, 1))};
  if (shape.context < std::min(kShortest, wanted.context)) {
    shape = {kLeastSequences, std::min(wanted.context, tokens / kLeastSequences)};
  }
  if (shape.context < 2 * (windows.sink + windows.recent)) return std::nullopt;
  return shape;
}

PromptSet hold_out(PromptSet& prompts, std::int64_t budget, const HeldOutShape& wanted, const CacheWindows& windows) {
  std::vector<std::size_t> within, beyond;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < prompts.prompts.size(); ++i) {
    (all >= budget ? beyond : within).push_back(i);
    all += std::ssize(prompts.prompts[i].ids);
  }
  // What the budget leaves: whole prompts, and the end of the one in which it ends.
  const std::int64_t behind = tokens_of(prompts, beyond), tail = std::max<std::int64_t>(0, all - behind - budget);
  const std::int64_t free = behind + tail;
  const std::int64_t share = std::max(all / 10, std::min(all / 5, kSequences * kShortest));
  const std::int64_t goal = std::min(wanted.tokens(), std::max(free, share));
  Selection selection(prompts);
  selection.spread(beyond, std::min(goal, behind), false);
  for (const std::size_t i : beyond) selection.cut(i, std::ssize(prompts.prompts[i].ids), goal);
  if (tail > 0) selection.cut(within.back(), tail, goal);
  if (selection.tokens() < goal) selection.spread(within, goal - selection.tokens(), true);
  if (selection.tokens() == 0) selection.cut_longest(goal);
  if (!shape_within(wanted, selection.tokens(), windows)) return {};

  PromptSet held;
  std::vector<Prompt> rest;
  for (std::size_t i = 0; i < prompts.prompts.size(); ++i) {
    Prompt& prompt = prompts.prompts[i];
    const auto kept = std::ssize(prompt.ids) - selection.of(i);
    if (kept == std::ssize(prompt.ids)) {
      rest.push_back(std::move(prompt));
      continue;
    }
    held.prompts.push_back({prompt.source, prompt.kind, {prompt.ids.begin() + kept, prompt.ids.end()}});
    prompt.ids.resize(static_cast<std::size_t>(kept));
    if (kept > 0) {
      rest.push_back(std::move(prompt));
    } else {
      prompts.skipped.push_back({prompt.source, "held out for the measurement at the end"});
    }
  }
  prompts.prompts = std::move(rest);
  prompts.sha256 = prompts_sha256(prompts.prompts);
  held.sha256 = prompts_sha256(held.prompts);
  return held;
}

}  // namespace oscar
