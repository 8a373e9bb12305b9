// What oscar-fit prints: plans, results, the table of --pareto; as text or, with --json, as JSON.
#pragma once

#include <string>

#include "bundle/bundle.h"
#include "pipeline/fit/fit_listener.h"
#include "pipeline/fit/fit_request.h"

namespace oscar {

class FitOutput : public FitListener {
 public:
  explicit FitOutput(const FitRequest& request) : r_(request) {}

  void planned(const FitPlan& plan) override;
  void planned(const ModelPlan& plan) override;
  void collected(const TokenPlan& plan, const CollectOptions& options, const CollectReport& report) override;
  void saved(const SavedFit& fit) override;
  void saved(const std::vector<ParetoRow>& rows) override;

 private:
  void print_json(const SavedFit& fit) const;

  const FitRequest& r_;
};

// Facts about a fitted bundle for serving: memory by context, and the layers with the largest share of the error.
// Lines of at most 100 columns: "memory ..." and, if errors were predicted, "worst ...".
std::string fit_summary(const Bundle& bundle, const FitResult& result);

}  // namespace oscar
