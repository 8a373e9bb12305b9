#include "verify/score_store.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>

#include "base/errors.h"

namespace oscar {
namespace {

// One row of one group: the sequences one after another.
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

void unpack(const VerifyWork& work, const std::string& record, std::size_t row, std::vector<SequenceScores>& out) {
  const at::Tensor sizes = work.load_tensor(record, field(row, "sizes")).contiguous();
  const at::Tensor values = work.load_tensor(record, field(row, "values")).contiguous();
  const at::Tensor same = work.load_tensor(record, field(row, "same_top")).contiguous();
  const bool types =
      sizes.scalar_type() == at::kLong && values.scalar_type() == at::kDouble && same.scalar_type() == at::kByte;
  std::int64_t tokens = 0, least = 0;
  const auto* s = types ? sizes.const_data_ptr<std::int64_t>() : nullptr;
  for (std::int64_t i = 1; types && i < sizes.numel(); i += 2) {
    least = std::min(least, s[i]);
    if (s[i] > 0 && s[i] <= same.numel()) tokens += s[i];
  }
  if (!types || sizes.numel() % 2 != 0 || least < 0 || same.numel() != tokens || values.numel() != 3 * tokens) {
    throw InputError(record + " in " + work.path().string() + " is damaged; delete the directory to start anew");
  }
  const double* v = values.const_data_ptr<double>();
  const auto* t = same.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < sizes.numel(); i += 2) {
    const std::int64_t n = s[i + 1];
    out.push_back({s[i], {v, v + n}, {v + n, v + 2 * n}, {v + 2 * n, v + 3 * n}, {t, t + n}});
    v += 3 * n, t += n;
  }
}

}  // namespace

std::string group_name(std::size_t group) {
  char name[40];
  std::snprintf(name, sizeof name, "group-%05zu", group);
  return name;
}

void ScoreStore::add_group(const std::vector<std::vector<SequenceScores>>& rows, WorkRecord sums) {
  if (work_ == nullptr) {
    if (!file_) file_ = std::make_shared<TempFile>();
    rows_.resize(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (const SequenceScores& s : rows[r]) {
        rows_[r].push_back({file_->size(), s.first_position, s.kl.size()});
        for (const auto* v : {&s.baseline_nll, &s.nll, &s.kl}) file_->append(v->data(), v->size() * sizeof(double));
        file_->append(s.same_top.data(), s.same_top.size());
      }
    }
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
  std::vector<SequenceScores> scores;
  if (work_ == nullptr) {
    for (const Piece& p : rows_.at(r)) {
      SequenceScores s{p.first_position, {}, {}, {}, {}};
      std::uint64_t offset = p.offset;
      for (auto* v : {&s.baseline_nll, &s.nll, &s.kl}) {
        v->resize(p.tokens);
        file_->read(offset, v->data(), p.tokens * sizeof(double));
        offset += p.tokens * sizeof(double);
      }
      s.same_top.resize(p.tokens);
      file_->read(offset, s.same_top.data(), p.tokens);
      scores.push_back(std::move(s));
    }
    return scores;
  }
  for (std::size_t g = 0; g < groups_; ++g) unpack(*work_, group_name(g), r, scores);
  return scores;
}

}  // namespace oscar
