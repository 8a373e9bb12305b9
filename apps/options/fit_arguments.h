// The options of oscar-fit: definitions, defaults and refusals.
#pragma once

#include <string>
#include <vector>

#include "apps/collect_run.h"
#include "apps/fit_check.h"
#include "apps/fit_curves.h"
#include "apps/fit_target.h"
#include "apps/options/common_options.h"
#include "bundle/bundle.h"
#include "fit/fit_options.h"

namespace oscar {

struct FitArguments {
  CommonOptions common;
  FitOptions fit;
  CacheWindows windows;
  std::string statistics, scope = "auto", clip = "auto", window_text = "64,256";
  std::string encoder = "auto", center = "auto", form;
  bool method_given = false;
  double bits = 0.0;
  bool text_hashes = true;
  std::int64_t context = -1;  // from --context; -1: not given
  std::vector<double> pareto;
  TargetArguments target;  // in place of bits
  CurveArguments curves;
  CollectArguments collect;  // with --model instead of statistics
  bool far_pairs_given = false;
  CheckArguments check;
};

void add_fit_options(CLI::App& app, FitArguments& arguments);
void note_given_options(const CLI::App& app, FitArguments& arguments);  // call after parsing

// For --model instead of statistics, which are then collected. The default is the best method with measured allocation.
// For a model whose curves cannot be measured (refuse_carried_rows()), it is the analytic allocation.
void choose_for_model(FitArguments& arguments, const ModelConfig& model);

// Parses the texts of options, and sets the defaults of a method or of --for. UsageError.
void parse_options(FitArguments& arguments);
// UsageError for options without effect. measures: curves are measured.
void refuse_idle_options(const CLI::App& app, const FitArguments& arguments, bool measures);

// Applies --bits and --pareto for this head size: a budget, or the group of a uniform code. UsageError.
void choose_bits(FitArguments& arguments, std::int64_t head_dim);
// Bits of the planned bundles, ascending.
std::vector<double> budgets_of(const FitArguments& arguments);
void check_context(const FitArguments& arguments);
void choose_context(FitArguments& arguments, const Statistics& statistics);

}  // namespace oscar
