// An earlier report, to compare with.
#pragma once

#include "base/files.h"
#include "base/json.h"
#include "verify/report.h"

namespace oscar {

class BaselineReport {
 public:
  // InputError for a file that is no report of a version this program reads.
  static BaselineReport load(const fs::path& file);

  // InputError, naming what differs, when model, text, context or precision are not those of this run. Called before
  // any long work.
  void require_same(const ModelFacts& model, const TextFacts& text, std::int64_t context,
                    const std::string& dtype) const;

  // Rows that are in both reports (same method, comparison and path), in the order of `report`; fills report.changes,
  // and with a limit a gate on each judged row: KL now <= KL before + limit.
  void compare(VerifyReport& report, std::optional<double> max_kl_increase) const;

 private:
  std::string name_;
  Json json_;
};

}  // namespace oscar
