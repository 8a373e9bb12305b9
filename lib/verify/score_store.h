// Per-token scores of all rows (methods on paths) of a run. They live on disk, in the work directory or else in an
// unnamed temporary file, and one row at a time is read back, so that memory does not grow with text times methods.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/temp_file.h"
#include "verify/metrics.h"
#include "verify/work_directory.h"

namespace oscar {

std::string group_name(std::size_t group);  // of the record

class ScoreStore {
 public:
  ScoreStore() = default;
  explicit ScoreStore(const VerifyWork* work) : work_(work) {}

  // The scores of group number groups(): [rows][sequences of the group]. `sums` goes into the same record.
  void add_group(const std::vector<std::vector<SequenceScores>>& rows, WorkRecord sums);
  // Groups 0 .. groups - 1 are on disk already.
  void resume(std::size_t groups) { groups_ = groups; }
  std::size_t groups() const { return groups_; }

  std::vector<SequenceScores> row(std::size_t r) const;  // of all sequences

 private:
  const VerifyWork* work_ = nullptr;
  std::size_t groups_ = 0;

  // The scores of one sequence in the temporary file: baseline_nll, nll, kl, same_top.
  struct Piece {
    std::uint64_t offset = 0;
    std::int64_t first_position = 0;
    std::size_t tokens = 0;
  };
  std::shared_ptr<TempFile> file_;
  std::vector<std::vector<Piece>> rows_;
};

}  // namespace oscar
