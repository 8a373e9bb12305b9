#include "fit/clip_search.h"

#include <algorithm>
#include <cmath>

#include "fit/for_each_head.h"
#include "fit/head_scorer.h"

namespace oscar {
namespace {

// Index of the first minimum.
std::size_t least(const std::vector<double>& errors) {
  return static_cast<std::size_t>(std::min_element(errors.begin(), errors.end()) - errors.begin());
}

// Errors of one side of the model on one half of the rows.
class Measure {
 public:
  Measure(const Statistics& s, const std::vector<SideTransform>& transforms, const std::vector<LayerRows>& rows,
          const SideCosts& costs, const ClipSearch& search)
      : s_(s), transforms_(transforms), rows_(rows), search_(search), costs_(costs) {}

  // [layer][head][ratio]; ratios(layer, head) gives the clip ratios to measure.
  using Sums = std::vector<std::vector<std::vector<ErrorSum>>>;
  Sums operator()(bool held_out, const std::function<std::vector<float>(std::size_t, std::int64_t)>& ratios,
                  const std::function<void()>& on_head) const {
    const auto heads = static_cast<std::size_t>(s_.kv_heads);
    Sums sums(s_.layers.size(), std::vector<std::vector<ErrorSum>>(heads));
    for_each_head(s_.layers.size(), s_.kv_heads, on_head, [&](std::size_t layer, std::int64_t head) {
      const RowSet& set = held_out ? rows_[layer].held_out : rows_[layer].fit;
      HeadProblem problem = make_problem(s_, layer, head, set, search_.code, search_.encoder);
      problem.metric = costs_.metric[layer][head];
      use_transform(problem, search_.side, transforms_[layer], head);
      const auto scorer = search_.side == Side::kKey ? metric_scorer(problem) : gain_scorer(problem);
      for (const float rho : ratios(layer, head)) {
        sums[layer][static_cast<std::size_t>(head)].push_back(scorer->score(rho));
      }
    });
    return sums;
  }

  // [ratio] of the heads [first, last) of a layer, summed.
  std::vector<double> costs(const Sums& sums, std::size_t layer, std::size_t first, std::size_t last) const {
    std::vector<ErrorSum> total(sums[layer][first].size());
    for (std::size_t head = first; head < last; ++head) {
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += sums[layer][head][i];
    }
    std::vector<double> costs;
    for (const ErrorSum& sum : total) costs.push_back(costs_.cost(layer, sum, rows_[layer].fit.tokens()));
    return costs;
  }
  std::vector<double> costs(const Sums& sums, std::size_t layer) const {
    return costs(sums, layer, 0, sums[layer].size());
  }

 private:
  const Statistics& s_;
  const std::vector<SideTransform>& transforms_;
  const std::vector<LayerRows>& rows_;
  const ClipSearch& search_;
  const SideCosts& costs_;
};

// Held-out errors of three choices: no clip, the published ratio, and the found ratio.
struct Trial {
  double none = 0.0, usual = 0.0, found = 0.0;
  double least() const { return std::min(none, found); }
};

// The choice after the held-out check. ahead: the search clearly beats the published ratio.
float settle(float choice, float published, const Trial& errors, bool ahead) {
  if (ahead) return errors.found < errors.none ? choice : 0.0f;
  return errors.usual < errors.none ? published : 0.0f;
}

}  // namespace

std::vector<float> clip_candidates(std::int64_t d) {
  std::vector<float> ratios = {0.0f};
  // Steps of one channel up to d/16, then coarser ones.
  const auto step = [d](std::int64_t clipped) {
    const std::int64_t parts = clipped < d / 16 ? d : clipped < d / 8 ? 64 : clipped < 3 * d / 8 ? 32 : 16;
    return std::max<std::int64_t>(1, d / parts);
  };
  for (std::int64_t clipped = 1; clipped <= 3 * d / 4; clipped += step(clipped)) {
    const double index = static_cast<double>(d - 1 - clipped);
    ratios.push_back(static_cast<float>(std::round((index + 0.5) / static_cast<double>(d) * 1000.0) / 1000.0));
  }
  return ratios;
}

ClipChoice search_clip(const Statistics& s, const std::vector<SideTransform>& transforms,
                       const std::vector<LayerRows>& rows, const SideCosts& costs, const ClipSearch& search,
                       const std::function<void()>& on_head) {
  const std::vector<float> candidates = clip_candidates(s.head_dim);
  const Measure measure(s, transforms, rows, costs, search);
  const auto fit = measure(
      false, [&](std::size_t, std::int64_t) { return candidates; }, on_head);
  // The best ratio of each layer or head, and the best for all layers together.
  std::vector<std::vector<float>> best(s.layers.size());
  std::vector<double> together(candidates.size(), 0.0);
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    const std::vector<double> errors = measure.costs(fit, layer);
    for (std::size_t i = 0; i < candidates.size(); ++i) together[i] += errors[i];
    if (search.scope == Scope::kLayer) {
      best[layer] = {candidates[least(errors)]};
    } else {
      for (std::size_t head = 0; head < fit[layer].size(); ++head) {
        best[layer].push_back(candidates[least(measure.costs(fit, layer, head, head + 1))]);
      }
    }
  }
  const float best_one = candidates[least(together)];

  // Held-out rows decide between no clip, the published ratio and the found ratio.
  const float published = search.side == Side::kKey ? kPublishedKeyClip : kPublishedValueClip;
  const auto held_out =
      measure(true,
              [&](std::size_t layer, std::int64_t head) {
                const std::vector<float>& found = best[layer];
                return std::vector<float>{0.0f, published,
                                          found[found.size() == 1 ? 0 : static_cast<std::size_t>(head)], best_one};
              },
              {});
  // [layer][1 or Hkv], and the sums that decide for the side.
  std::vector<std::vector<Trial>> trials(s.layers.size());
  double searched = 0.0, usual = 0.0;
  Trial one;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    const std::vector<double> errors = measure.costs(held_out, layer);
    one.none += errors[0], one.usual += errors[1], one.found += errors[3];
    for (std::size_t i = 0; i < best[layer].size(); ++i) {
      const std::vector<double> own = search.scope == Scope::kLayer ? errors : measure.costs(held_out, layer, i, i + 1);
      trials[layer].push_back({own[0], own[1], own[2]});
      searched += trials[layer].back().least(), usual += own[1];
    }
  }
  ClipChoice choice;
  const bool ahead = searched < kClearlyAhead * usual;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    std::vector<float> kept;
    for (std::size_t i = 0; i < best[layer].size(); ++i) {
      kept.push_back(settle(best[layer][i], published, trials[layer][i], ahead));
    }
    choice.layers.push_back(std::move(kept));
  }
  choice.one = settle(best_one, published, one, one.least() < kClearlyAhead * one.usual);
  return choice;
}

}  // namespace oscar
