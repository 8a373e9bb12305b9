#include "fit/provenance_options.h"

#include <array>
#include <utility>

#include "base/errors.h"
#include "registry/registry.h"

namespace oscar {
namespace {

constexpr const char* kWhere = "provenance.options of the bundle";

[[noreturn]] void refuse(const char* entry) {
  throw InputError(std::string(kWhere) + ": '" + entry +
                   "' is missing or not one of oscar-fit's; fit the bundle again with oscar-fit");
}

template <typename T, std::size_t N>
T named(const Json& options, const char* entry, const std::array<std::pair<const char*, T>, N>& names) {
  if (options.contains(entry) && options[entry].is_string()) {
    for (const auto& [name, value] : names) {
      if (options[entry].get_ref<const std::string&>() == name) return value;
    }
  }
  refuse(entry);
}

double number(const Json& options, const char* entry, double least, double most) {
  if (!options.contains(entry) || !options[entry].is_number()) refuse(entry);
  const double value = options[entry].get<double>();
  if (!(value >= least && value <= most)) refuse(entry);
  return value;
}

}  // namespace

FitOptions fit_options_of(const Bundle& bundle) {
  if (!bundle.provenance.is_object() || !bundle.provenance.contains("options") ||
      !bundle.provenance["options"].is_object()) {
    throw InputError(std::string(kWhere) + " are missing: it was not written by oscar-fit");
  }
  const Json& json = bundle.provenance["options"];
  FitOptions o;
  o.method = bundle.method;
  const MethodRow& method = fitted_method(o.method);
  o.scope = named<Scope, 2>(json, "scope", {{{"layer", Scope::kLayer}, {"head", Scope::kHead}}});
  o.value_target = named<ValueTarget, 2>(json, "value_target",
                                         {{{value_target_name(ValueTarget::kExact), ValueTarget::kExact},
                                           {value_target_name(ValueTarget::kOutput), ValueTarget::kOutput}}});
  o.center = named<Center, 5>(json, "center",
                              {{{"none", Center::kNone},
                                {"key", Center::kKey},
                                {"mean", Center::kMean},
                                {"rope", Center::kRope},
                                {"auto", Center::kAuto}}});
  o.encoder = parse_encoder(bundle.encoder);
  o.clip = ClipMode::kNone;
  o.quant_group = bundle.quant_group;
  if (!method.metric_aware()) return o;
  o.metric = named<MetricSource, 2>(json, "metric",
                                    {{{metric_name(MetricSource::kFarPairs), MetricSource::kFarPairs},
                                      {metric_name(MetricSource::kMoments), MetricSource::kMoments}}});
  o.damping = number(json, "damping", 0.0, 0.1);
  o.exponent = number(json, "exponent", 0.0, 1.0);
  if (json.contains("context")) o.context = static_cast<std::int64_t>(number(json, "context", 0.0, 1 << 30));
  return o;
}

}  // namespace oscar
