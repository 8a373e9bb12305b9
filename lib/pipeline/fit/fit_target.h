// oscar-fit --target-kl, --target-ppl and --preset: the budget is chosen by what measured curves predict of it.
#pragma once

#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "bundle/curves.h"
#include "bundle/target_budget.h"

namespace oscar {

// A quality in plain words. docs/quality.md says what each was chosen by.
struct Preset {
  const char* name;
  double kl;  // nats
};
const std::vector<Preset>& presets();

struct TargetArguments {
  double kl = 0.0, perplexity = 0.0;  // 0: not given
  std::string preset;                 // empty: not given

  bool given() const { return kl > 0.0 || perplexity > 0.0 || !preset.empty(); }
  const char* option() const;  // the one that was given, with its dashes
  double kl_target() const;    // nats; needs one
};

struct TargetChoice {
  std::vector<BudgetRow> rows;
  std::size_t chosen = 0;

  double bits() const { return rows[chosen].bits; }
};

// Error with exit code 1 where no budget meets the target: it names the best. kept: what is left for another try, or
// empty.
TargetChoice choose_budget(const Curves& curves, const TargetArguments& arguments, const std::string& kept);

// provenance.target of the bundle.
void record_target(Bundle& bundle, const TargetArguments& arguments, const TargetChoice& choice);

std::string target_table(const TargetArguments& arguments, const TargetChoice& choice);
Json target_json(const TargetArguments& arguments, const TargetChoice& choice);

}  // namespace oscar
