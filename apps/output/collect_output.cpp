#include "apps/output/collect_output.h"

#include <set>
#include <sstream>

#include "base/columns.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/shell.h"
#include "collect/shard.h"
#include "model/device.h"
#include "pipeline/collect/collect_run.h"

namespace oscar {
namespace {

Json plan_json(const TokenPlan& plan) {
  Json out = {{"tokens", plan.tokens},
              {"available_tokens", plan.available},
              {"sequences", plan.pieces.size()},
              {"longest_sequence", plan.longest},
              {"prompts_used", plan.prompts_used},
              {"cut", plan.cut},
              {"shortened", plan.shortened},
              {"unused", plan.unused},
              {"skipped", plan.skipped}};
  if (plan.shard.is_part()) out["shard"] = shard_record(plan);
  return out;
}

// An empty shard lacks these metrics, but this is not a gap if other shards have them.
bool may_have_far_pairs(const TokenPlan& plan, const FarPairs& far) {
  return plan.shard.is_part() && plan.whole_longest > far.sink + far.recent;
}

Json timeline_json(Timeline& timeline) {
  Json out = Json::array();
  for (const Timeline::Row& row : timeline.rows()) out.push_back({{"phase", row.name}, {"seconds", row.seconds}});
  return out;
}

}  // namespace

Json estimate_json(const TokenPlan& plan, const CollectOptions& options, const CollectEstimate& e) {
  Json out = {{"format_version", 1}, {"dry_run", true}, {"output", options.output.string()}};
  out["plan"] = plan_json(plan);
  out["weight_bytes"] = e.weight_bytes;
  out["stored_weight_bytes"] = e.stored_bytes;
  out["peak_memory_bytes"] = e.peak_bytes;
  out["device_memory_bytes"] = e.device_bytes;
  out["disk_bytes"] = e.disk_bytes;
  out["output_bytes"] = e.output_bytes;
  return out;
}

std::string estimate_text(const TokenPlan& plan, const CollectOptions& options, const CollectEstimate& e) {
  std::ostringstream text;
  text << "plan       " << plan_counts(plan) << "\n"
       << "weights    " << format_bytes(e.weight_bytes) << " in memory (one layer at a time), "
       << (e.stored_bytes > 0 ? format_bytes(e.stored_bytes) : std::string("an unknown size")) << " in files\n"
       << "memory     about " << format_bytes(e.peak_bytes) << " at its peak\n"
       << (e.device_bytes > 0 ? "GPU        about " + format_bytes(e.device_bytes) + " at its peak\n" : std::string())
       << "disk       about " << format_bytes(e.disk_bytes) << " in " << work_directory_of(options).string()
       << " while it runs, " << format_bytes(e.output_bytes) << " for " << options.output.string() << "\n";
  return text.str();
}

void print_estimate(const TokenPlan& plan, const CollectOptions& options, const CollectEstimate& e, bool json) {
  print_result(json ? dump_json(estimate_json(plan, options, e))
                    : estimate_text(plan, options, e) + "dry run: nothing was written\n");
}

std::string collected_text(const TokenPlan& plan, const CollectOptions& options, const CollectReport& r) {
  const bool gap = !may_have_far_pairs(plan, options.far);
  if (options.far.enabled && r.far_queries == 0.0 && gap) {
    log_warning("no sequence is longer than both windows of --far-pairs (" + std::to_string(options.far.sink) +
                " and " + std::to_string(options.far.recent) +
                " tokens): no metrics of pairs outside the windows were written; oscar-fit falls back to "
                "Q^T Q and W_O^T W_O");
  }
  std::ostringstream text;
  text << "wrote      " << options.output.string() << "\n"
       << "collected  " << plan_counts(plan) << "\n";
  if (plan.tokens == 0) return text.str();
  text << "time       " << duration_text(r.seconds) << "\n";
  return text.str();
}

void print_result(const TokenPlan& plan, const CollectOptions& options, const CollectReport& r, bool json) {
  if (json) {
    Json out = {{"format_version", 1}, {"dry_run", false}, {"output", options.output.string()}};
    out["plan"] = plan_json(plan);
    out["resumed"] = r.resumed;
    out["seconds"] = r.seconds;
    out["far_pairs"] = {{"queries", r.far_queries}};
    if (options.timeline != nullptr) out["timeline"] = timeline_json(*options.timeline);
    print_result(dump_json(out));
  } else {
    const std::string next =
        plan.shard.is_part()
            ? "oscar-collect merge, with the files of all " + std::to_string(plan.shard.count) + " shards"
            : "oscar-fit " + shell_command({options.output.string()}) + " -o bundle";
    print_summary(collected_text(plan, options, r) + "next       " + next + "\n");
  }
  log_timeline(options.timeline);
  log_device_memory(options.device);
}

void print_merged(const std::vector<std::string>& parts, const Statistics& merged, const CommonOptions& options) {
  if (options.json) {
    print_result(dump_json({{"format_version", 1},
                            {"dry_run", options.dry_run},
                            {"output", options.output},
                            {"merged", parts},
                            {"tokens", merged.tokens}}));
    return;
  }
  const std::string text = (options.dry_run ? "would write " : "wrote      ") + options.output + "\nmerged     " +
                           std::to_string(parts.size()) + " files, " + std::to_string(merged.tokens) + " tokens\n";
  options.dry_run ? print_result(text) : print_summary(text);
}

void warn_of_same_prompts(const Statistics& merged) {
  std::set<std::string> seen;
  for (const Json& part : merged.metadata["parts"]) {
    const std::string sha = part["prompts"]["sha256"].get<std::string>();
    if (!seen.insert(sha).second) log_warning("prompt set " + sha.substr(0, 12) + "... counts more than once");
  }
}

}  // namespace oscar
