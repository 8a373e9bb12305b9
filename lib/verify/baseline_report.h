// An earlier report, for comparison with this run.
#pragma once

#include <functional>
#include <string_view>

#include "base/files.h"
#include "base/json.h"
#include "report/report.h"

namespace oscar {

class BaselineReport {
 public:
  // InputError if the file is not a report of a supported version, or contains impossible numbers.
  static BaselineReport load(const fs::path& file);
  // The same from the bytes of a file; `where` is its name in messages.
  static BaselineReport parse(std::string_view bytes, const std::string& where);

  // InputError that names the difference if model, text, context or precision differ from this run. Also if the earlier
  // report scored tokens that this run does not: more sequences, or earlier positions. Called before any long work.
  void require_same(const ModelFacts& model, const TextFacts& text, const ScoringFacts& scoring,
                    const std::string& dtype) const;

  std::int64_t first_position() const;  // of the tokens scored in the earlier report
  std::int64_t sequences() const;

  // Compares rows in both reports (same method, comparison and path), in the order of `report`, and fills
  // report.changes. With a limit, each candidate row gets a gate on the increase of the mean KL. The upper end of its
  // interval over paired sequences must be within the limit; bootstrap computes that interval. same_tokens(i): metrics
  // of row i of this run, only on tokens of the earlier report. These are positions from first_position() on in the
  // first sequences() sequences.
  void compare(VerifyReport& report, std::optional<double> max_kl_increase, const BootstrapOptions& bootstrap,
               const std::function<QualityMetrics(std::size_t)>& same_tokens) const;

 private:
  std::string name_;
  Json json_;
};

}  // namespace oscar
