// Per-token scores of all rows (methods on paths) of a run. With a work directory they are stored there and read back
// one row at a time, so memory does not grow with text times methods.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "distributed/ranks.h"
#include "report/metrics.h"
#include "verify/verify_work.h"

namespace oscar {

std::string group_name(std::size_t group);  // name of the record

// The scored tokens of a run, equal for every row.
struct ScoreLayout {
  std::int64_t first_position = 0;
  std::vector<std::int64_t> tokens;  // [S] scored tokens per sequence
  std::size_t group = 1;             // sequences per group; the last may have fewer

  std::span<const std::int64_t> of_group(std::size_t g) const;  // their tokens; empty after the last group
  std::int64_t before_group(std::size_t g) const;               // tokens of all groups before it
};

// A row of a group's record. InputError naming `where` unless it has finite scores of exactly these sequences.
std::vector<SequenceScores> read_scores(const WorkRecord& record, const std::string& where, std::size_t row,
                                        std::int64_t first_position, std::span<const std::int64_t> tokens);

class ScoreStore {
 public:
  ScoreStore() = default;
  ScoreStore(const VerifyWork* work, ScoreLayout layout) : work_(work), layout_(std::move(layout)) {}

  // Adds the scores of group number groups(): [rows][sequences of the group]. `sums` goes into the same record.
  void add_group(const std::vector<std::vector<SequenceScores>>& rows, WorkRecord sums);
  // Groups 0 .. groups - 1 are already on disk.
  void resume(std::size_t groups) { groups_ = groups; }
  std::size_t groups() const { return groups_; }

  std::vector<SequenceScores> row(std::size_t r) const;  // for all sequences

 private:
  const VerifyWork* work_ = nullptr;
  ScoreLayout layout_;
  std::size_t groups_ = 0;
  std::vector<std::vector<SequenceScores>> rows_;  // without a work directory
};

// Distributes the sequences of a run over ranks (distributed/ranks.h), in complete groups whose scores are independent.
// Sequences with layer errors stay on rank 0. Their sums are thus added in single-process order, and every number in
// the report has the same bits.

// The rank of each group. probed: sequences with layer errors; they count twice because they cost about twice as much.
// The other groups go, in order, to the rank with the fewest tokens so far (ties: the lowest).
std::vector<int> deal_groups(const ScoreLayout& layout, std::int64_t probed, int ranks);

// Collects and checks the records of all groups in the work directory of rank 0. rows: number per record.
void gather_groups(Ranks& ranks, const VerifyWork& work, const ScoreLayout& layout, const std::vector<int>& owners,
                   std::size_t rows);

}  // namespace oscar
