// What oscar-fit prints: plans, results, the table of --pareto; as text or, with --json, as JSON.
#pragma once

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

}  // namespace oscar
