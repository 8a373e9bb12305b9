#include "pipeline/fit/fit_check.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>

#include "base/errors.h"
#include "base/log.h"
#include "bundle/bundle.h"
#include "bundle/bundle_location.h"
#include "fit/provenance_options.h"
#include "fit/regret.h"
#include "layout/left_out.h"
#include "statistics/statistics.h"
#include "statistics/windowed_layers.h"

namespace oscar {
namespace {

void require_same_model(const Bundle& bundle, const Statistics& statistics) {
  if (bundle.model_fingerprint.empty() || bundle.model_fingerprint == statistics.model_fingerprint) return;
  throw InputError("the bundle was fitted to another model than the statistics are of (fingerprint " +
                   bundle.model_fingerprint.substr(0, 19) + "... and " + statistics.model_fingerprint.substr(0, 19) +
                   "...)");
}

// JSON has no number for an infinite ratio (a new fit without any error).
Json ratio_json(const SideRegret& side) {
  const double ratio = side.ratio();
  return std::isfinite(ratio) ? Json(ratio) : Json();
}

Json side_json(const SideRegret& side) {
  return {{"bundle", side.bundle}, {"refit", side.refit}, {"regret", ratio_json(side)}};
}

void print_json(const CheckArguments& a, const Regret& regret, bool pass) {
  Json layers = Json::array();
  for (const LayerRegret& layer : regret.layers) {
    layers.push_back({{"layer", layer.layer}, {"key", side_json(layer.key)}, {"value", side_json(layer.value)}});
  }
  Json json = {{"format_version", 1},
               {"bundle", a.bundle},
               {"statistics", a.statistics},
               {"metric", metric_name(regret.metric)},
               {"total", side_json(regret.total)},
               {"moved", regret.moved},
               {"max_regret", a.max_regret > 0.0 ? Json(a.max_regret) : Json()},
               {"pass", pass},
               {"layers", std::move(layers)}};
  print_result(dump_json(json));
}

// The run's own summary. With -q the exit code is the answer; with --json the JSON is.
void print_text(const CheckArguments& a, const Regret& regret, bool pass) {
  std::ostringstream text;
  text << std::fixed << "predicted errors on the new statistics, over those of a new fit with the same bits\n"
       << "layer      keys    values   share of the bundle's error\n";
  const double total = std::max(regret.total.bundle, 1e-300);
  for (const LayerRegret& layer : regret.layers) {
    text << std::setw(5) << layer.layer << std::setprecision(3) << "  " << std::setw(8) << layer.key.ratio() << "  "
         << std::setw(8) << layer.value.ratio() << std::setprecision(1) << "   " << std::setw(5)
         << 100.0 * layer.key.bundle / total << "% " << std::setw(5) << 100.0 * layer.value.bundle / total << "%\n";
  }
  text << "regret end to end: " << std::setprecision(3) << regret.total.ratio();
  if (a.max_regret > 0.0) {
    text << " (at most " << std::defaultfloat << std::setprecision(4) << a.max_regret << std::fixed
         << "): " << (pass ? "pass" : "FAIL");
  }
  text << "\n";
  if (regret.moved < 0.999 * regret.total.refit) {
    text << "a new fit that also moves bytes between layers and sides: " << std::setprecision(3)
         << (regret.moved > 0.0 ? regret.total.bundle / regret.moved : std::numeric_limits<double>::infinity()) << "\n";
  }
  print_summary(text.str());
}

}  // namespace

int run_check(const CheckArguments& a, bool json) {
  const Bundle bundle = load_bundle(locate_bundle(a.bundle));
  const FitOptions options = fit_options_of(bundle);
  Statistics collected = load_statistics(a.statistics);
  const std::vector<LeftOutLayer> left_out = read_left_out(bundle.model, collected.model_layers(), a.bundle);
  const Statistics statistics = without_layers(std::move(collected), left_out);
  require_same_model(bundle, statistics);
  const Regret regret = measure_regret(bundle.layers, statistics, options);
  const bool pass = a.max_regret <= 0.0 || regret.total.ratio() <= a.max_regret;
  json ? print_json(a, regret, pass) : print_text(a, regret, pass);
  return pass ? 0 : 1;
}

}  // namespace oscar
