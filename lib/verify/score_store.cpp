#include "verify/score_store.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/formatted.h"

namespace oscar {
namespace {

std::string list_name(std::size_t row) { return "row" + std::to_string(row); }

// One row of one group: for each sequence the four scores of all its tokens.
std::vector<double> pack(const std::vector<SequenceScores>& sequences) {
  std::vector<double> all;
  for (const SequenceScores& s : sequences) {
    for (const auto* v : {&s.baseline_nll, &s.nll, &s.kl}) all.insert(all.end(), v->begin(), v->end());
    all.insert(all.end(), s.same_top.begin(), s.same_top.end());
  }
  return all;
}

}  // namespace

std::string group_name(std::size_t group) { return formatted("group-%05zu", group); }

std::span<const std::int64_t> ScoreLayout::of_group(std::size_t g) const {
  const std::size_t begin = std::min(g * group, tokens.size()), end = std::min(begin + group, tokens.size());
  return std::span(tokens).subspan(begin, end - begin);
}

std::int64_t ScoreLayout::before_group(std::size_t g) const {
  const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(std::min(g * group, tokens.size()));
  return std::accumulate(tokens.begin(), end, std::int64_t{0});
}

std::vector<SequenceScores> read_scores(const WorkRecord& record, const std::string& where, std::size_t row,
                                        std::int64_t first_position, std::span<const std::int64_t> tokens) {
  const std::int64_t total = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  const std::vector<double>& all = record_list(record, where, list_name(row), static_cast<std::size_t>(4 * total));
  std::vector<SequenceScores> scores;
  for (const double* v = all.data(); const std::int64_t n : tokens) {
    for (std::int64_t i = 0; i < 3 * n; ++i) require_score(v[i], i < 2 * n ? -kScoreRounding : 0.0, where);
    for (std::int64_t i = 3 * n; i < 4 * n; ++i) {
      if (v[i] != 0.0 && v[i] != 1.0) damaged_run(where, "an agreement is neither 0 nor 1");
    }
    scores.push_back({first_position, {v, v + n}, {v + n, v + 2 * n}, {v + 2 * n, v + 3 * n}, {v + 3 * n, v + 4 * n}});
    v += 4 * n;
  }
  return scores;
}

void ScoreStore::add_group(const std::vector<std::vector<SequenceScores>>& rows, WorkRecord sums) {
  if (work_ == nullptr) {
    rows_.resize(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) rows_[r].insert(rows_[r].end(), rows[r].begin(), rows[r].end());
  } else {
    for (std::size_t r = 0; r < rows.size(); ++r) sums[list_name(r)] = pack(rows[r]);
    work_->save(group_name(groups_), sums);
  }
  ++groups_;
}

std::vector<SequenceScores> ScoreStore::row(std::size_t r) const {
  if (work_ == nullptr) return rows_.at(r);
  std::vector<SequenceScores> scores;
  for (std::size_t g = 0; g < groups_; ++g) {
    const WorkRecord record = work_->load_list(group_name(g), list_name(r));
    std::vector<SequenceScores> group =
        read_scores(record, work_->file(group_name(g)).string(), r, layout_.first_position, layout_.of_group(g));
    std::move(group.begin(), group.end(), std::back_inserter(scores));
  }
  return scores;
}

}  // namespace oscar
