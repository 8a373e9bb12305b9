// Output of oscar-collect: results on stdout, as text or JSON (schemas/collect.schema.json); notes on stderr.
#pragma once

#include <string>
#include <vector>

#include "collect/collect.h"
#include "collect/collect_estimate.h"
#include "pipeline/common/common_options.h"

namespace oscar {

// The plan of a dry run, as JSON and as lines of text.
Json estimate_json(const TokenPlan& plan, const CollectOptions& options, const CollectEstimate& estimate);
std::string estimate_text(const TokenPlan& plan, const CollectOptions& options, const CollectEstimate& estimate);
void print_estimate(const TokenPlan& plan, const CollectOptions& options, const CollectEstimate& estimate, bool json);
// Lines about a finished run. Warns if no metrics of pairs outside the windows were written.
std::string collected_text(const TokenPlan& plan, const CollectOptions& options, const CollectReport& report);
// With options.timeline, also shows where the time went: on stderr and in the JSON.
void print_result(const TokenPlan& plan, const CollectOptions& options, const CollectReport& report, bool json);
void print_merged(const std::vector<std::string>& parts, const Statistics& merged, const CommonOptions& options);
void warn_of_same_prompts(const Statistics& merged);

}  // namespace oscar
