// What a run of oscar-fit is asked for. The options complete it once (apps/options/fit_arguments.h); the pipeline only
// reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fit/fit_options.h"
#include "pipeline/collect/collect_request.h"
#include "pipeline/common/common_options.h"
#include "pipeline/fit/fit_curves.h"
#include "pipeline/fit/fit_target.h"

namespace oscar {

struct FitRequest {
  CommonOptions common;
  FitOptions fit;  // all that does not depend on the statistics; fit_options_for() adds the rest
  CacheWindows windows;
  std::string statistics;  // the file; with curves.collects, the one that the run writes
  std::string form;        // of --for; empty: none
  double bits = 0.0;       // from --bits; 0: not given
  bool text_hashes = true, check_rows = true;
  std::int64_t context = -1;  // from --context; -1: not given
  std::vector<double> pareto;
  TargetArguments target;  // in place of bits
  CurveArguments curves;
  CollectArguments collect;  // with a model instead of statistics
  std::string work_dir;      // from --work-dir

  bool measures() const { return fit.allocate == "measured" && curves.file.empty(); }  // curves, by the model
  bool is_first() const { return is_first_rank(curves.ranks); }                        // this process prints
};

// The budget of a method that allocates bits: --bits, or else the default for the model's kind of attention.
double budget_of(const FitRequest& request, bool latent);

// UsageError for a budget or a group that the model's head size cannot have.
void check_bits(const FitRequest& request, const ModelConfig& model);

// The options of the fit to these statistics: context, and budget or group of a uniform code. UsageError as
// check_bits().
FitOptions fit_options_for(const FitRequest& request, const Statistics& statistics);

// Bits of the planned bundles, ascending. chosen: FitOptions::bits, of one bundle.
std::vector<double> budgets_of(const FitRequest& request, double chosen);

// Budgets whose end-to-end KL is measured.
std::size_t measured_budgets(const FitRequest& request);

}  // namespace oscar
