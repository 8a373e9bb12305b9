#include "verify/score_store.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/formatted.h"

namespace oscar {
namespace {

// One row of one group: all sequences in order.
struct Fields {
  std::vector<std::int64_t> sizes;  // pairs: first position, number of tokens
  std::vector<double> values;       // baseline_nll, nll and kl of each sequence
  std::vector<std::uint8_t> same_top;
};

Fields pack(const std::vector<SequenceScores>& sequences) {
  Fields f;
  for (const SequenceScores& s : sequences) {
    f.sizes.push_back(s.first_position);
    f.sizes.push_back(std::ssize(s.kl));
    for (const auto* v : {&s.baseline_nll, &s.nll, &s.kl}) f.values.insert(f.values.end(), v->begin(), v->end());
    f.same_top.insert(f.same_top.end(), s.same_top.begin(), s.same_top.end());
  }
  return f;
}

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, at::ScalarType type) {
  at::Tensor t = at::empty({std::ssize(values)}, at::TensorOptions(type));
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<T>());
  return t;
}

std::string field(std::size_t row, const char* name) { return "row" + std::to_string(row) + "." + name; }

const char* const kFields[] = {"sizes", "values", "same_top"};

void require_scores(const at::Tensor& values, std::span<const std::int64_t> tokens, const std::string& where) {
  const double* score = values.const_data_ptr<double>();
  for (const std::int64_t n : tokens) {
    for (const double* end = score + 2 * n; score < end; ++score) require_score(*score, -kScoreRounding, where);
    for (const double* end = score + n; score < end; ++score) require_score(*score, 0.0, where);
  }
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
  const auto take = [&](const char* name, at::ScalarType type, std::int64_t numbers) -> const at::Tensor& {
    return record_tensor(record, where, field(row, name), type, {numbers});
  };
  const at::Tensor& sizes = take(kFields[0], at::kLong, 2 * std::ssize(tokens));
  const at::Tensor& values = take(kFields[1], at::kDouble, 3 * total);
  const at::Tensor& same = take(kFields[2], at::kByte, total);
  const auto* size = sizes.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (size[2 * i] != first_position || size[2 * i + 1] != tokens[i]) {
      damaged_run(where, "row " + std::to_string(row) + " holds other positions than the run scores");
    }
  }
  require_scores(values, tokens, where);
  if (total > 0 && same.max().item<std::int64_t>() > 1) damaged_run(where, "an agreement is neither 0 nor 1");
  std::vector<SequenceScores> scores;
  const double* v = values.const_data_ptr<double>();
  const auto* t = same.const_data_ptr<std::uint8_t>();
  for (const std::int64_t n : tokens) {
    scores.push_back({first_position, {v, v + n}, {v + n, v + 2 * n}, {v + 2 * n, v + 3 * n}, {t, t + n}});
    v += 3 * n, t += n;
  }
  return scores;
}

void ScoreStore::add_group(const std::vector<std::vector<SequenceScores>>& rows, WorkRecord sums) {
  if (work_ == nullptr) {
    rows_.resize(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) rows_[r].insert(rows_[r].end(), rows[r].begin(), rows[r].end());
  } else {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const Fields f = pack(rows[r]);
      sums[field(r, "sizes")] = tensor_of(f.sizes, at::kLong);
      sums[field(r, "values")] = tensor_of(f.values, at::kDouble);
      sums[field(r, "same_top")] = tensor_of(f.same_top, at::kByte);
    }
    work_->save(group_name(groups_), sums);
  }
  ++groups_;
}

std::vector<SequenceScores> ScoreStore::row(std::size_t r) const {
  if (work_ == nullptr) return rows_.at(r);
  std::vector<SequenceScores> scores;
  std::vector<std::string> names;
  for (const char* name : kFields) names.push_back(field(r, name));
  for (std::size_t g = 0; g < groups_; ++g) {
    const WorkRecord record = work_->load_tensors(group_name(g), names);  // without the other rows
    std::vector<SequenceScores> group =
        read_scores(record, work_->file(group_name(g)).string(), r, layout_.first_position, layout_.of_group(g));
    std::move(group.begin(), group.end(), std::back_inserter(scores));
  }
  return scores;
}

}  // namespace oscar
