#include "bundle/curves.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostLayers = 10000, kMostSequences = 100000;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_error(const std::vector<double>& values, double mean) {
  const double n = static_cast<double>(values.size());
  if (n < 2.0) return 0.0;
  double squares = 0.0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / (n - 1.0) / n);
}

// A value of the file, as text that a terminal can show.
std::string shown(const Json& value) { return printable(value.dump(-1, ' ', true)); }

// A KL: not negative, and small enough that sums of its squares stay finite.
double kl_value(const Json& value, const std::string& where) {
  constexpr double kMost = 1e6;  // nats; no vocabulary allows more than a few thousand
  const double kl = value.is_number() ? value.get<double>() : -1.0;
  if (!(kl >= 0.0 && kl <= kMost)) {
    throw InputError(where + ": a KL is " + shown(value) + ", expected a number of nats from 0 to 1000000");
  }
  return kl;
}

using Profiles = std::vector<Widths>;

// known: the profiles that the file may have.
Widths read_profile(const Json& json, const Profiles& known, const std::string& where) {
  Widths widths{};
  widths.refined = json.is_array() && json.size() == kBands + 1 && json[kBands] == "refined";
  const bool four = json.is_array() && (json.size() == kBands || widths.refined);
  for (std::size_t b = 0; four && b < kBands; ++b) {
    const std::int64_t width = json[b].is_number_integer() ? json[b].get<std::int64_t>() : -1;
    widths[b] =
        width >= 0 && width <= 4 ? static_cast<std::uint8_t>(width) : std::uint8_t{3};  // not a width: refused below
  }
  if (!four || std::find(known.begin(), known.end(), widths) == known.end()) {
    const char* more = known.size() > falling_profiles().size() ? ", or 4-a-b-c with \"refined\""
                       : widths.refined                         ? "; \"refined\" is for format_version 3"
                                                                : "";
    throw InputError(where + ": 'widths' is " + shown(json) + ", expected four of 0, 1, 2, 4 that do not rise" + more);
  }
  return widths;
}

std::vector<double> read_analytic(const Json& json, const Profiles& known, const std::string& where) {
  std::vector<double> errors;
  for (const Json& value : json) {
    const double error = value.is_number() ? value.get<double>() : -1.0;
    if (!(error >= 0.0 && std::isfinite(error))) {
      throw InputError(where + ": 'analytic' holds " + shown(value) + ", expected numbers that are not negative");
    }
    errors.push_back(error);
  }
  if (errors.size() != known.size()) {
    throw InputError(where + ": 'analytic' has " + std::to_string(errors.size()) +
                     " numbers, expected one for each of " + std::to_string(known.size()) + " profiles");
  }
  return errors;
}

SideCurve read_curve(const Json& json, const Profiles& known, const std::string& where, std::int64_t sequences) {
  SideCurve curve;
  curve.layer = json_int_within(json, "layer", where, 0, kMostLayers);
  const std::string side = json_string(json, "side", where);
  if (side != "key" && side != "value") {
    throw InputError(where + ": 'side' is " + quote_name(side) + ", expected 'key' or 'value'");
  }
  curve.side = side == "value" ? Side::kValue : Side::kKey;
  const std::string here = where + ", layer " + std::to_string(curve.layer) + " " + side;
  for (const Json& entry : json_array(json, "points", here)) {
    const Widths widths = read_profile(json_array(entry, "widths", here), known, here);
    std::vector<double> kl;
    for (const Json& value : json_array(entry, "sequences", here)) kl.push_back(kl_value(value, here));
    if (static_cast<std::int64_t>(kl.size()) != sequences) {
      throw InputError(here + ": a point has " + std::to_string(kl.size()) + " sequences, expected " +
                       std::to_string(sequences));
    }
    for (const CurvePoint& other : curve.points) {
      if (other.widths == widths) throw InputError(here + ": the same widths stand in it twice");
    }
    curve.points.push_back(curve_point(widths, std::move(kl)));
  }
  if (curve.points.empty()) throw InputError(here + ": has no points");
  if (json.contains("analytic")) curve.analytic = read_analytic(json_array(json, "analytic", here), known, here);
  return curve;
}

// [[4, 2, 1, 0], ...], one per layer.
Profiles read_profiles(const Json& json, const char* key, const Profiles& known, const std::string& where,
                       std::size_t layers) {
  Profiles profiles;
  for (const Json& entry : json_array(json, key, where)) profiles.push_back(read_profile(entry, known, where));
  if (profiles.size() != layers) {
    throw InputError(where + ": has widths of " + std::to_string(profiles.size()) + " layers, expected " +
                     std::to_string(layers));
  }
  return profiles;
}

EndToEndPoint read_end_to_end(const Json& json, const Profiles& known, const std::string& where, const Curves& c) {
  EndToEndPoint point;
  json_number(json, "bits", where);
  point.bits = json.at("bits").get<double>();
  point.from = json_string(json, "from", where);
  if (point.from != "analytic" && point.from != "measured") {
    throw InputError(where + ": 'from' is " + quote_name(point.from) + ", expected 'analytic' or 'measured'");
  }
  const auto layers = static_cast<std::size_t>(c.layers());
  point.key = read_profiles(json, "key", known, where, layers);
  point.value = read_profiles(json, "value", known, where, layers);
  if (c.latent && point.key != point.value) {
    throw InputError(where + ": the widths of keys and values differ, and the curves are of latent attention");
  }
  std::vector<double> kl;
  for (const Json& value : json_array(json, "sequences", where)) kl.push_back(kl_value(value, where));
  if (static_cast<std::int64_t>(kl.size()) != c.sequences) {
    throw InputError(where + ": has " + std::to_string(kl.size()) + " sequences, expected " +
                     std::to_string(c.sequences));
  }
  const CurvePoint mean = curve_point({}, std::move(kl));
  point.kl = mean.kl, point.error = mean.error, point.sequences = mean.sequences;
  return point;
}

Json end_to_end_json(const EndToEndPoint& point) {
  return {{"bits", point.bits},          {"from", point.from}, {"key", point.key},
          {"value", point.value},        {"kl", point.kl},     {"standard_error", point.error},
          {"sequences", point.sequences}};
}

Json point_json(const CurvePoint& point, std::int64_t head_dim) {
  return {{"widths", point.widths},
          {"bits", profile_bits(point.widths, static_cast<int>(head_dim))},
          {"kl", point.kl},
          {"standard_error", point.error},
          {"sequences", point.sequences}};
}

}  // namespace

const char* curve_side_name(Side side) { return side == Side::kKey ? "keys" : "values"; }

CurvePoint curve_point(const Widths& widths, std::vector<double> sequences) {
  CurvePoint point{widths, 0.0, 0.0, std::move(sequences)};
  point.kl = mean(point.sequences);
  point.error = standard_error(point.sequences, point.kl);
  return point;
}

Json curves_to_json(const Curves& c) {
  Json json = {{"format", "oscar-curves"},
               {"format_version", c.curves.front().analytic.size() > falling_profiles().size() ? 3 : 2},
               {"tool_version", c.tool_version},
               {"model_fingerprint", c.model_fingerprint},
               {"statistics_sha256", c.statistics_sha256},
               {"options", c.options},
               {"text", c.text},
               {"head_dim", c.head_dim},
               {"windows", {{"sink", c.sink}, {"recent", c.recent}}},
               {"context", c.context},
               {"sequences", c.sequences},
               {"dtype", c.dtype},
               {"rounding_kl", c.rounding_kl}};
  Json curves = Json::array();
  for (const SideCurve& curve : c.curves) {
    Json points = Json::array();
    for (const CurvePoint& point : curve.points) points.push_back(point_json(point, c.head_dim));
    Json side = {
        {"layer", curve.layer}, {"side", curve.side == Side::kKey ? "key" : "value"}, {"points", std::move(points)}};
    if (!curve.analytic.empty()) side["analytic"] = curve.analytic;
    curves.push_back(std::move(side));
  }
  json["curves"] = std::move(curves);
  if (!c.end_to_end.empty()) json["end_to_end"] = Json::array();
  for (const EndToEndPoint& point : c.end_to_end) json["end_to_end"].push_back(end_to_end_json(point));
  return json;
}

Curves curves_from_json(const Json& json, const std::string& where) {
  const std::string format = json_string(json, "format", where);
  if (format != "oscar-curves") {
    throw InputError(where + ": 'format' is " + quote_name(format) + ", expected 'oscar-curves'");
  }
  const std::int64_t version = json_int(json, "format_version", where);
  if (version != 2 && version != kCurvesFormatVersion) {
    throw InputError(where + ": format_version " + std::to_string(version) +
                     " is not known to this program, which reads " + std::to_string(kCurvesFormatVersion) +
                     "; update the toolchain or measure the curves again");
  }
  Curves c{.model_fingerprint = json_string(json, "model_fingerprint", where),
           .statistics_sha256 = json_string(json, "statistics_sha256", where),
           .tool_version = json_string(json, "tool_version", where),
           .options = json_object(json, "options", where),
           .text = json_object(json, "text", where)};
  json_string(c.text, "name", where + ", text");
  c.head_dim = json_int_within(json, "head_dim", where, 32, kMaxHeadDim);
  if (c.head_dim % 32 != 0) throw InputError(where + ": 'head_dim' is no multiple of 32");
  const Json& windows = json_object(json, "windows", where);
  c.sink = json_int_within(windows, "sink", where, 0, std::int64_t{1} << 32);
  c.recent = json_int_within(windows, "recent", where, 1, std::int64_t{1} << 32);
  c.context = json_int_within(json, "context", where, 1, std::int64_t{1} << 32);
  c.sequences = json_int_within(json, "sequences", where, 1, kMostSequences);
  c.dtype = json_string(json, "dtype", where);
  json_number(json, "rounding_kl", where);
  c.rounding_kl = kl_value(json.at("rounding_kl"), where);
  const Json& curves = json_array(json, "curves", where);
  c.latent =
      std::none_of(curves.begin(), curves.end(), [](const Json& e) { return json_member(e, "side") == "value"; });
  if (version > 2 && !c.latent) throw InputError(where + ": format_version 3 is for curves of latent attention");
  const Profiles& known = version > 2 ? latent_profiles() : falling_profiles();
  for (const Json& entry : curves) {
    SideCurve curve = read_curve(entry, known, where, c.sequences);
    const std::size_t place = c.curves.size();
    if (curve.layer != static_cast<std::int64_t>(place / c.sides()) ||
        curve.side != (place % c.sides() == 0 ? Side::kKey : Side::kValue)) {
      throw InputError(where + ": the curves are not those of each layer's keys and values, in order");
    }
    c.curves.push_back(std::move(curve));
  }
  if (c.curves.empty() || c.curves.size() % c.sides() != 0)
    throw InputError(where + ": 'curves' lacks the curve of a side");
  if (json.contains("end_to_end")) {
    for (const Json& entry : json_array(json, "end_to_end", where))
      c.end_to_end.push_back(read_end_to_end(entry, known, where + ", end_to_end", c));
  }
  return c;
}

void add_curves(Bundle& bundle, const Curves& curves, const PredictedKl& p) {
  bundle.provenance["prediction"] = {{"kl", p.kl},
                                     {"standard_error", p.error},
                                     {"context", p.context},
                                     {"windows", {{"sink", p.sink}, {"recent", p.recent}}}};
  bundle.provenance["curves"] = {{"text", curves.text}};
  if (!curves.text_hashes.empty()) bundle.calibration_hashes.push_back({{"prompts", curves.text_hashes}});
}

std::optional<PredictedKl> prediction_of(const Bundle& bundle, const std::string& where) {
  if (!bundle.provenance.is_object() || !bundle.provenance.contains("prediction")) return std::nullopt;
  const std::string here = where + ", prediction";
  const Json& json = json_object(bundle.provenance, "prediction", where);
  PredictedKl p;
  for (const char* key : {"kl", "standard_error"}) {
    json_number(json, key, here);
    (key[0] == 'k' ? p.kl : p.error) = kl_value(json.at(key), here);
  }
  p.context = json_int_within(json, "context", here, 1, std::int64_t{1} << 32);
  const Json& windows = json_object(json, "windows", here);
  p.sink = json_int_within(windows, "sink", here, 0, std::int64_t{1} << 32);
  p.recent = json_int_within(windows, "recent", here, 0, std::int64_t{1} << 32);
  return p;
}

std::optional<Curves> load_curves(const fs::path& directory, const Bundle& bundle) {
  const fs::path path = directory / kCurvesName;
  std::error_code ec;
  if (!fs::exists(path, ec)) return std::nullopt;
  Curves curves = curves_from_json(read_json(path, std::uint64_t{64} << 20), path.string());
  if (curves.latent != bundle.latent() || curves.layers() != std::ssize(bundle.layers) ||
      curves.head_dim != bundle.layers.front().head_dim) {
    throw InputError(path.string() + ": has curves of " + std::to_string(curves.layers()) + " layers of head size " +
                     std::to_string(curves.head_dim) + (curves.latent ? " of latent attention" : "") +
                     ", which are not the bundle's");
  }
  return curves;
}

}  // namespace oscar
