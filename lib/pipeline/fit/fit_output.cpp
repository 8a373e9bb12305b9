#include "pipeline/fit/fit_output.h"

#include <ATen/Parallel.h>

#include <sstream>

#include "base/columns.h"
#include "base/formatted.h"
#include "base/log.h"
#include "bundle/manifest.h"
#include "bundle/model_card.h"
#include "export/served_form.h"
#include "fit/fit.h"
#include "layout/left_out.h"
#include "pipeline/fit/fit_summary.h"
#include "registry/registry.h"
#include "report/number_text.h"

namespace oscar {
namespace {

std::string clip_text(const SideTransform& side) {
  float low = 1.0f, high = 0.0f;
  for (const float rho : side.clip) {
    low = std::min(low, rho);
    high = std::max(high, rho);
  }
  if (high <= 0.0f) return "off";
  if (low == high) return formatted("%.3f", high);
  return (low <= 0.0f ? std::string("off") : formatted("%.3f", low)) + "-" + formatted("%.3f", high);
}

// energy: null if the method has no eigenvectors of a target; its spectrum has a separate table. comparable: whether
// all layers' errors have the same unit.
std::string row(const std::string& name, const CapturedEnergy* energy, const SidePrediction& p, bool comparable,
                const std::string& clip) {
  const std::string captured =
      energy == nullptr ? "-" : formatted("%5.1f%% -> %5.1f%%", 100.0 * energy->identity, 100.0 * energy->fit);
  std::string line = formatted("%5s  %16s   %9.4f %9.4f %9.4f %9.4f  %11s  ", name.c_str(), captured.c_str(),
                               p.identity, p.hadamard, p.unclipped, p.fit, clip.c_str());
  if (comparable) line += formatted("%9.3g", p.error) + " " + formatted("%9.3g", p.one_clip_error);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// One table: keys or values of all layers, and their total.
std::string table(const FitResult& result, bool key) {
  std::string text =
      key ? "keys: error of held-out rows, as queries read it" : "values: error of held-out rows, as W_O reads it";
  text += "; relative to the rows";
  if (result.far()) text += ",\nand as a share of the residual stream";
  text += "\nlayer  energy in d/16      identity  Hadamard   no clip       fit         clip  ";
  text += result.far() ? "    share  one clip\n" : "\n";
  SidePrediction sum;
  const bool captured = result.layers.front().key_spectrum.lambda.empty();
  for (const LayerFit& layer : result.layers) {
    const CapturedEnergy& energy = key ? layer.key_energy : layer.value_energy;
    const SidePrediction& p = key ? layer.key : layer.value;
    text += row(std::to_string(layer.transform.layer), captured ? &energy : nullptr, p, result.far(),
                clip_text(key ? layer.transform.key : layer.transform.value));
    sum.error += p.error;
    sum.one_clip_error += p.one_clip_error;
  }
  if (!result.far()) return text;
  const float one = key ? result.global_key_clip : result.global_value_clip;
  text += "sum of shares " + formatted("%.3g", sum.error) + "; with one clip for all layers (" +
          (one > 0.0f ? formatted("%.3f", one) : std::string("off")) + "): " + formatted("%.3g", sum.one_clip_error) +
          "\n";
  return text;
}

// Error-weighted methods: where the error is, and how bits were allocated.
std::string spectrum_table(const FitResult& result) {
  std::string text = "predicted error of each layer and side, in ";
  switch (result.metric) {
    case MetricSource::kFarPairs:
      text += "units of the residual stream;\nmetric: pairs outside the windows\n";
      break;
    default:
      text += "units of the residual stream;\nmetric: Q^T Q and the value target\n";
  }
  text += "layer side    lambda of the blocks                  AM/GM  condition  widths    error     share\n";
  double total = 0.0;
  TransformCheck keys, values;
  for (const LayerFit& layer : result.layers) {
    keys.add(layer.key_spectrum.check);
    values.add(layer.value_spectrum.check);
    for (const bool key : {true, false}) {
      const SideSpectrum& s = key ? layer.key_spectrum : layer.value_spectrum;
      std::string lambda;
      for (const double value : s.lambda) lambda += formatted("%-9.3g", value);
      text += formatted("%5lld %-6s  %-36s  %5.1f  %9.3g  %-7s  %-9.3g %5.1f%%\n",
                        static_cast<long long>(layer.transform.layer), key ? "key" : "value", lambda.c_str(), s.gain,
                        s.condition, widths_of(key ? layer.transform.key : layer.transform.value).c_str(), s.error,
                        100.0 * s.share);
      total += s.error;
    }
  }
  text += "sum of errors " + formatted("%.4g", total) + "\n";
  if (keys.plain <= 0.0) return text;
  const auto line = [](const char* what, const TransformCheck& c) {
    return std::string(what) + formatted("%.1e", c.change) + " in FP32; BF16 " + formatted("%.2g", c.bf16) +
           ", without transform " + formatted("%.2g", c.plain) + "\n";
  };
  return text + "sampled rows, nothing quantized, worst head, relative change\n" + line("  logits  ", keys) +
         line("  values  ", values);
}

}  // namespace

FitPlan plan_fit(const Statistics& s, const FitOptions& options) {
  FitPlan plan{static_cast<std::int64_t>(s.layers.size()), s.kv_heads, s.head_dim, s.tokens};
  const auto d = static_cast<std::uint64_t>(s.head_dim), heads = static_cast<std::uint64_t>(s.kv_heads);
  const auto layers = static_cast<std::uint64_t>(plan.layers);
  plan.rows = s.layers[0].rows_k.defined() ? s.layers[0].rows_k.size(0) : 0;
  const std::uint64_t stored =
      options.scope == Scope::kHead && !fitted_method(options.method).data_free() ? heads : std::uint64_t{1};
  plan.output_bytes = 2 * layers * stored * d * (d + 1) * sizeof(float);
  // Memory: the statistics, targets and eigenvectors (FP64) of both sides, and a second copy of the rows.
  const std::uint64_t grams = layers * heads * d * d * sizeof(double);
  const std::uint64_t rows = layers * static_cast<std::uint64_t>(plan.rows) *
                             (static_cast<std::uint64_t>(s.query_heads) + 2 * heads) * d * sizeof(float);
  plan.peak_memory_bytes = 6 * grams + 6 * grams + 2 * rows + plan.output_bytes;
  // A fit of one layer and head, to measure time.
  Statistics one = s;
  one.layers.resize(1);
  FitOptions quiet = options;
  quiet.on_step = nullptr;
  plan.seconds = seconds_of([&] { fit(one, quiet); }) * static_cast<double>(plan.layers);
  return plan;
}

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

void print_fit_plan(const FitPlan& plan, const std::string& output, bool json) {
  if (json) {
    Json out = {{"format_version", 1},
                {"dry_run", true},
                {"output", output},
                {"layers", plan.layers},
                {"kv_heads", plan.kv_heads},
                {"head_dim", plan.head_dim},
                {"tokens", plan.tokens},
                {"sampled_rows", plan.rows},
                {"peak_memory_bytes", plan.peak_memory_bytes},
                {"disk_bytes", plan.output_bytes},
                {"seconds", plan.seconds}};
    if (plan.curves) out["curves"] = curve_plan_json(*plan.curves);
    print_result(dump_json(out));
    return;
  }
  std::ostringstream text;
  text << "plan       " << plan.layers << " layers of " << plan.kv_heads << " KV heads, head size " << plan.head_dim
       << "; " << plan.tokens << " tokens, " << plan.rows << " sampled rows in each layer\n"
       << "memory     about " << format_bytes(plan.peak_memory_bytes) << " at its peak\n"
       << "disk       " << format_bytes(plan.output_bytes) << " for " << output << "\n"
       << "time       about " << formatted("%.1f", plan.seconds) << " s (one layer was fitted to measure it)\n";
  if (plan.curves) text << curve_plan_text(*plan.curves);
  print_result(text.str());
}

void print_fit_result(const Bundle& bundle, const FitResult& result, const std::string& output,
                      const std::string& statistics, bool json, const Ending& ending) {
  if (json) {
    Json out = {{"format_version", 1}, {"output", output}, {"method", bundle.method}, {"scope", bundle.scope}};
    out["statistics"] = statistics;
    out["bits_per_element"] = bundle_bits_per_element(bundle);
    out["global_clip"] = {{"key", json_float(result.global_key_clip)}, {"value", json_float(result.global_value_clip)}};
    Json clips = Json::array();
    for (const LayerFit& layer : result.layers) {
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
    if (const std::optional<PredictedKl> predicted = prediction_of(bundle, output)) {
      out["predicted_kl"] = {{"kl", predicted->kl}, {"standard_error", predicted->error}};
    }
    if (!ending.target.is_null()) out["target"] = ending.target;
    if (!ending.measured.is_null()) out["measured"] = ending.measured;
    out["fit"] = bundle.fit_report;
    print_result(dump_json(out));
    return;
  }
  const bool spectra = !result.layers.front().key_spectrum.lambda.empty();
  std::ostringstream text;
  const bool details = log_level() == LogLevel::kVerbose;
  if (details && spectra) text << spectrum_table(result) << "\n";
  if (result.held_out_rows > 0) {
    if (details) text << table(result, true) << "\n" << table(result, false) << "\n";
  } else {
    text << "no sampled rows in the statistics: no errors are predicted\n";
  }
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
               : "format " + form + " carries it unchanged; measure its quality with oscar-verify\n")
       << ending.text;
  print_summary(text.str());
}

ParetoRow pareto_row(double budget, const Bundle& bundle, const FitResult& result, const std::string& directory) {
  ParetoRow row{.budget = budget, .bits = bundle_bits_per_element(bundle), .directory = directory};
  const double weight = 1.0 / static_cast<double>(result.layers.size());
  for (const LayerFit& layer : result.layers) {
    row.key_bits += weight * layer.transform.key.code(layer.transform.head_dim, 0).bits_per_element();
    row.value_bits += weight * layer.transform.value.code(layer.transform.head_dim, 0).bits_per_element();
    row.error += layer.key_spectrum.error + layer.value_spectrum.error;
  }
  return row;
}

void print_pareto(const std::vector<ParetoRow>& rows, bool dry_run, bool json) {
  if (json) {
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
