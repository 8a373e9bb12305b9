#include "rotation/clip_search.h"

#include <cmath>

#include "rotation/for_each_head.h"
#include "rotation/predict.h"

namespace oscar {
namespace {

// relative[layer or head][candidate]; the first smallest of the sums over the first index.
std::size_t smallest_sum(const std::vector<std::vector<double>>& relative) {
  std::vector<double> sums(relative.front().size(), 0.0);
  for (const std::vector<double>& row : relative) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += row[i];
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < sums.size(); ++i) {
    if (sums[i] < sums[best]) best = i;
  }
  return best;
}

// Errors of one side of the model on one half of the rows.
class Measure {
 public:
  Measure(const Statistics& s, const std::vector<SideTransform>& transforms, const std::vector<LayerRows>& rows,
          const ClipSearch& search, bool held_out)
      : s_(s), transforms_(transforms), rows_(rows), search_(search), held_out_(held_out) {}

  // [layer][head][ratio]; ratios(layer, head) gives the clip ratios to measure.
  std::vector<std::vector<std::vector<ErrorSum>>> operator()(
      const std::function<std::vector<float>(std::size_t, std::int64_t)>& ratios,
      const std::function<void()>& on_head) const {
    const auto heads = static_cast<std::size_t>(s_.kv_heads);
    std::vector<std::vector<std::vector<ErrorSum>>> sums(s_.layers.size(), std::vector<std::vector<ErrorSum>>(heads));
    for_each_head(s_.layers.size(), s_.kv_heads, on_head, [&](std::size_t layer, std::int64_t head) {
      const RowSet& set = held_out_ ? rows_[layer].held_out : rows_[layer].fit;
      HeadProblem problem = make_problem(s_, layer, head, set, search_.code, search_.encoder);
      use_transform(problem, search_.side, transforms_[layer], head);
      const std::unique_ptr<HeadScorer> scorer = make_scorer(search_.objective, problem);
      for (const float rho : ratios(layer, head)) {
        sums[layer][static_cast<std::size_t>(head)].push_back(scorer->score(rho));
      }
    });
    return sums;
  }

 private:
  const Statistics& s_;
  const std::vector<SideTransform>& transforms_;
  const std::vector<LayerRows>& rows_;
  const ClipSearch& search_;
  bool held_out_;
};

// Relative errors of a layer: heads added up first.
std::vector<double> layer_errors(const std::vector<std::vector<ErrorSum>>& heads) {
  std::vector<ErrorSum> sums(heads.front().size());
  for (const std::vector<ErrorSum>& head : heads) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += head[i];
  }
  std::vector<double> relative;
  for (const ErrorSum& sum : sums) relative.push_back(sum.relative());
  return relative;
}

std::vector<double> head_errors(const std::vector<ErrorSum>& head) {
  std::vector<double> relative;
  for (const ErrorSum& sum : head) relative.push_back(sum.relative());
  return relative;
}

}  // namespace

const char* objective_name(ClipObjective objective) {
  switch (objective) {
    case ClipObjective::kMetric:
      return "metric";
    case ClipObjective::kGain:
      return "gain";
    case ClipObjective::kAttention:
      break;
  }
  return "attention";
}

std::unique_ptr<HeadScorer> make_scorer(ClipObjective objective, const HeadProblem& problem) {
  switch (objective) {
    case ClipObjective::kMetric:
      return metric_scorer(problem);
    case ClipObjective::kGain:
      return gain_scorer(problem);
    case ClipObjective::kAttention:
      break;
  }
  return attention_scorer(problem);
}

std::vector<float> clip_candidates(std::int64_t d) {
  std::vector<float> ratios = {0.0f};
  // Steps of one channel up to d/16, then coarser and coarser ones.
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
                       const std::vector<LayerRows>& rows, const ClipSearch& search,
                       const std::function<void()>& on_head) {
  const std::vector<float> candidates = clip_candidates(s.head_dim);
  const auto fit =
      Measure(s, transforms, rows, search, false)([&](std::size_t, std::int64_t) { return candidates; }, on_head);
  // The best of each layer or head, and of all layers together.
  std::vector<std::vector<float>> best(s.layers.size());
  std::vector<std::vector<double>> curves;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    curves.push_back(layer_errors(fit[layer]));
    if (search.scope == Scope::kLayer) {
      best[layer] = {candidates[smallest_sum({curves.back()})]};
    } else {
      for (const std::vector<ErrorSum>& head : fit[layer]) {
        best[layer].push_back(candidates[smallest_sum({head_errors(head)})]);
      }
    }
  }
  const float best_global = candidates[smallest_sum(curves)];

  // Held-out rows decide between no clip and what was found.
  const auto held_out = Measure(s, transforms, rows, search, true)(
      [&](std::size_t layer, std::int64_t head) {
        const std::vector<float>& found = best[layer];
        return std::vector<float>{0.0f, found[found.size() == 1 ? 0 : static_cast<std::size_t>(head)], best_global};
      },
      {});
  ClipChoice choice;
  double none = 0.0, with_global = 0.0;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    const std::vector<double> errors = layer_errors(held_out[layer]);
    none += errors[0];
    with_global += errors[2];
    std::vector<float> kept = best[layer];
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const std::vector<double> own = search.scope == Scope::kLayer ? errors : head_errors(held_out[layer][i]);
      if (!(own[1] < own[0])) kept[i] = 0.0f;
    }
    choice.layers.push_back(std::move(kept));
  }
  choice.global = with_global < none ? best_global : 0.0f;
  return choice;
}

}  // namespace oscar
