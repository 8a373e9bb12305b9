// An earlier report, to compare with.
#pragma once

#include <functional>
#include <string_view>

#include "base/files.h"
#include "base/json.h"
#include "report/report.h"

namespace oscar {

class BaselineReport {
 public:
  // InputError for a file that is no report of a version this program reads, or whose figures no run can have.
  static BaselineReport load(const fs::path& file);
  // The same from the bytes of a file; `where` is its name in messages.
  static BaselineReport parse(std::string_view bytes, const std::string& where);

  // InputError, naming what differs, when model, text, context or precision are not those of this run, or when the
  // earlier report scored tokens that this run does not: more sequences, or positions before its first. Called before
  // any long work.
  void require_same(const ModelFacts& model, const TextFacts& text, const ScoringFacts& scoring,
                    const std::string& dtype) const;

  std::int64_t first_position() const;  // of the tokens that the earlier report scored
  std::int64_t sequences() const;

  // Rows that are in both reports (same method, comparison and path), in the order of `report`; fills report.changes,
  // and with a limit a gate on each judged row: KL now <= KL before + limit. same_tokens(i): what row i of this run
  // gives on the tokens of the earlier report alone, positions from first_position() on in the first sequences().
  void compare(VerifyReport& report, std::optional<double> max_kl_increase,
               const std::function<QualityMetrics(std::size_t)>& same_tokens) const;

 private:
  std::string name_;
  Json json_;
};

}  // namespace oscar
