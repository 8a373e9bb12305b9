#include "apps/output/fit_output.h"

#include <sstream>

#include "apps/output/collect_output.h"
#include "base/columns.h"
#include "base/formatted.h"
#include "base/log.h"
#include "bundle/manifest.h"
#include "bundle/model_card.h"
#include "export/served_form.h"
#include "layout/left_out.h"
#include "report/number_text.h"

namespace oscar {
namespace {

Json curve_plan_json(const CurvePlan& plan) {
  return {{"sequences", plan.shape.sequences}, {"context", plan.shape.context},
          {"profiles", plan.shape.profiles},   {"dtype", plan.decoding.dtype_name()},
          {"most_passes", plan.most_passes},   {"memory_bytes", plan.memory_bytes}};
}

std::string curve_plan_text(const CurvePlan& plan) {
  return "curves     " + plan.shape.text() + ", at most " + std::to_string(plan.most_passes) +
         " passes of one through one layer, about " + format_bytes(plan.memory_bytes) + " at once\n" +
         (plan.chosen ? "           " + curve_choice_text(plan) + "\n" : "");
}

constexpr const char* kNoneHeldOut = "held out   nothing: the prompts are too few, so the bundle is not measured\n";

std::string held_out_text(const ModelPlan& plan) {
  if (!plan.held_out) return kNoneHeldOut;
  return "held out   " + grouped(plan.held_out_tokens) + " tokens of the text, to measure the bundle on " +
         std::to_string(plan.held_out->sequences) + " sequences of " + grouped(plan.held_out->context) + "\n";
}

}  // namespace

void FitOutput::planned(const FitPlan& plan) {
  if (r_.common.json) {
    Json out = {{"format_version", 1},
                {"dry_run", true},
                {"output", r_.common.output},
                {"layers", plan.layers},
                {"kv_heads", plan.kv_heads},
                {"head_dim", plan.head_dim},
                {"tokens", plan.tokens},
                {"sampled_rows", plan.rows},
                {"peak_memory_bytes", plan.peak_memory_bytes},
                {"disk_bytes", plan.output_bytes}};
    if (plan.curves) out["curves"] = curve_plan_json(*plan.curves);
    print_result(dump_json(out));
    return;
  }
  std::ostringstream text;
  text << "plan       " << plan.layers << " layers of " << plan.kv_heads << " KV heads, head size " << plan.head_dim
       << "; " << plan.tokens << " tokens, " << plan.rows << " sampled rows in each layer\n"
       << "memory     about " << format_bytes(plan.peak_memory_bytes) << " at its peak\n"
       << "disk       " << format_bytes(plan.output_bytes) << " for " << r_.common.output << "\n";
  if (plan.curves) text << curve_plan_text(*plan.curves);
  print_result(text.str());
}

void FitOutput::planned(const ModelPlan& plan) {
  if (r_.common.json) {
    Json out = estimate_json(plan.tokens, plan.options, plan.estimate);
    if (plan.curves) out["curves"] = curve_plan_json(*plan.curves);
    if (plan.held_out) {
      out["held_out"] = {{"tokens", plan.held_out_tokens},
                         {"sequences", plan.held_out->sequences},
                         {"context", plan.held_out->context}};
    }
    out["own_text"] = plan.own_text.has_value();
    return print_result(dump_json(out));
  }
  print_result(plan.own_text.value_or("") + estimate_text(plan.tokens, plan.options, plan.estimate) +
               (plan.curves ? curve_plan_text(*plan.curves) : std::string()) + held_out_text(plan) +
               "dry run: nothing was written\n");
}

void FitOutput::collected(const TokenPlan& plan, const CollectOptions& options, const CollectReport& report) {
  const std::string text = collected_text(plan, options, report);
  if (!r_.common.json) print_summary(text);
}

void FitOutput::print_json(const SavedFit& fit) const {
  const Bundle& bundle = fit.bundle;
  Json out = {{"format_version", 1}, {"output", r_.common.output}, {"method", bundle.method}, {"scope", bundle.scope}};
  out["statistics"] = r_.statistics;
  out["bits_per_element"] = bundle_bits_per_element(bundle);
  out["global_clip"] = {{"key", json_float(fit.result.global_key_clip)},
                        {"value", json_float(fit.result.global_value_clip)}};
  Json clips = Json::array();
  for (const LayerFit& layer : fit.result.layers) {
    Json key = Json::array(), value = Json::array();
    for (const float rho : layer.transform.key.clip) key.push_back(json_float(rho));
    for (const float rho : layer.transform.value.clip) value.push_back(json_float(rho));
    clips.push_back({{"layer", layer.transform.layer}, {"key", std::move(key)}, {"value", std::move(value)}});
  }
  out["clip"] = std::move(clips);
  if (bundle.model.contains("left_out")) out["left_out"] = bundle.model["left_out"];
  const Json& options = bundle.provenance.at("options");
  if (options.contains("allocate")) out["allocate"] = options.at("allocate");
  out["served_as"] = lossless_form(bundle).format;
  if (const std::optional<PredictedKl> predicted = prediction_of(bundle, r_.common.output)) {
    out["predicted_kl"] = {{"kl", predicted->kl}, {"standard_error", predicted->error}};
  }
  if (fit.target != nullptr) out["target"] = target_json(r_.target, *fit.target);
  if (fit.measured != nullptr) out["measured"] = measured_json(*fit.text, *fit.measured);
  out["fit"] = bundle.fit_report;
  print_result(dump_json(out));
}

void FitOutput::saved(const SavedFit& fit) {
  if (r_.common.json) return print_json(fit);
  const Bundle& bundle = fit.bundle;
  const FitResult& result = fit.result;
  const std::string& output = r_.common.output;
  if (fit.target != nullptr) print_summary(target_table(r_.target, *fit.target));
  std::ostringstream text;
  if (result.held_out_rows == 0) text << "no sampled rows in the statistics: no errors are predicted\n";
  if (const std::optional<PredictedKl> predicted = prediction_of(bundle, output)) {
    text << "predicted end-to-end KL " << formatted("%.4g", predicted->kl) << " +- "
         << formatted("%.2g", predicted->error) << " at context " << predicted->context << ", from measured curves\n";
  }
  const std::int64_t layers = bundle.model.value("layers", std::int64_t{0});
  if (const std::string others = left_out_text(read_left_out(bundle.model, layers, output)); !others.empty()) {
    text << wrapped("not in the bundle: " + others);
  }
  text << "wrote " << output << ": method " << bundle.method << ", scope " << bundle.scope << ", "
       << bundle.layers.size() << " layers, " << formatted("%.3f", bundle_bits_per_element(bundle))
       << " bits per quantized element\n"
       << fit_summary(bundle, result);
  const std::string form = lossless_form(bundle).format;
  text << (form == kSimulatedForm
               ? "no engine serves it in this model without a change: evaluate it with oscar-verify\n"
               : "format " + form + " carries it unchanged; measure its quality with oscar-verify\n");
  if (fit.measured != nullptr) {
    text << measured_text(*fit.text, *fit.measured, fit.target != nullptr ? &r_.target : nullptr);
  } else if (r_.curves.collects) {
    text << "measured  nothing: the prompts are too few to hold some out; evaluate other text with oscar-verify\n";
  }
  print_summary(text.str());
}

void FitOutput::saved(const std::vector<ParetoRow>& rows) {
  const bool dry_run = r_.common.dry_run;
  if (r_.common.json) {
    Json list = Json::array();
    for (const ParetoRow& row : rows) {
      list.push_back({{"budget", row.budget},
                      {"bits_per_element", row.bits},
                      {"key_bits", row.key_bits},
                      {"value_bits", row.value_bits},
                      {"predicted_error", row.error},
                      {"bundle", row.directory}});
      if (row.kl) list.back()["measured_kl"] = row.kl->mean;
    }
    print_result(dump_json(Json{{"format_version", 1}, {"dry_run", dry_run}, {"pareto", std::move(list)}}));
    return;
  }
  const bool measured = !rows.empty() && rows.front().kl;
  std::string text = " budget    bits       K       V  predicted error  " +
                     std::string(measured ? "held-out KL       +-  " : "") + "bundle\n";
  for (const ParetoRow& row : rows) {
    text +=
        formatted("%7.4g %7.3f %7.3f %7.3f  %15.4g  ", row.budget, row.bits, row.key_bits, row.value_bits, row.error);
    if (row.kl) {
      text += formatted("%11s  %7s  ", significant(row.kl->mean, 3).c_str(),
                        half_width(row.kl->mean, row.kl->interval).c_str());
    }
    text += row.directory + "\n";
  }
  dry_run ? print_result(text + "dry run: nothing was written\n") : print_summary(text);
}

}  // namespace oscar
