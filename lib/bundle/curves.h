// Measured curves: the KL cost of each side (keys or values) of each layer when only it is quantized, at several width
// profiles. oscar-fit measures them, chooses group bit widths by them and stores them in the bundle as curves.json
// (schemas/curves.schema.json). So other budgets need no new pass, and people see where the bytes go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "bundle/bundle.h"
#include "layout/side.h"
#include "transform/profile_allocation.h"

namespace oscar {

inline constexpr const char* kCurvesName = "curves.json";
inline constexpr std::int64_t kCurvesFormatVersion = 3;  // 2: without refined profiles

struct CurvePoint {
  Widths widths{};
  double kl = 0.0;                // mean over scored tokens, nats, minus the KL of activation rounding
  double error = 0.0;             // standard error over the sequences
  std::vector<double> sequences;  // [S] mean KL of each sequence
};

struct SideCurve {
  std::int64_t layer = 0;
  Side side = Side::kKey;
  std::vector<CurvePoint> points;  // ascending bits
  // Analytic cost of each of falling_profiles() or latent_profiles(), in a unit that all sides share; empty in files of
  // earlier versions.
  std::vector<double> analytic;
};

// End-to-end KL, measured with all sides quantized, for one of the allocations of a budget.
struct EndToEndPoint {
  double bits = 0.0;               // the budget
  std::string from;                // analytic | measured: the allocation that chose the widths
  std::vector<Widths> key, value;  // [L]
  double kl = 0.0, error = 0.0;    // nats, including activation rounding; standard error over the sequences
  std::vector<double> sequences;   // [S]
};

struct Curves {
  std::string model_fingerprint, statistics_sha256, tool_version;
  Json options = Json::object();  // options of the fit whose transforms were measured, without its budget
  Json text = Json::object();     // name, and sha256 of the prompts
  // Hashes of the text, which verify must not score: {sha256, documents, passages} (calibration_hashes.h). They are
  // stored in calibration_hashes.json of the bundle, not in curves.json; empty if none are kept.
  Json text_hashes = Json::object();
  std::int64_t head_dim = 0, sink = 0, recent = 0, context = 0, sequences = 0;
  std::string dtype;         // of the activations: float32, bfloat16, or mixed (products in BF16, others FP32)
  double rounding_kl = 0.0;  // KL caused only by the rounding of activations; 0 in FP32 and mixed
  // For latent attention: a layer has one curve, of its keys with the values that they are. The sides of points and of
  // end-to-end measurements are equal.
  bool latent = false;
  std::vector<SideCurve> curves;          // layer by layer, keys before values
  std::vector<EndToEndPoint> end_to_end;  // by ascending budget

  std::size_t sides() const { return latent ? 1 : 2; }  // curves per layer
  std::int64_t layers() const { return static_cast<std::int64_t>(curves.size() / sides()); }
};

// "keys" or "values": the name of a curve's side in messages.
const char* curve_side_name(Side side);

// Mean and standard error of one number per sequence; error 0 for a single sequence.
CurvePoint curve_point(const Widths& widths, std::vector<double> sequences);

Json curves_to_json(const Curves& curves);
// InputError naming `where` for anything missing, of a wrong type, out of range or of a newer version.
Curves curves_from_json(const Json& json, const std::string& where);

// End-to-end KL: measured on the text of the curves, or the sum over sides.
struct PredictedKl {
  double kl = 0.0, error = 0.0;                    // nats; standard error over the sequences
  std::int64_t context = 0, sink = 0, recent = 0;  // the settings that it holds for
  bool operator==(const PredictedKl&) const = default;
};

// For a bundle whose widths come from curves: puts their prediction and their text into its provenance, and the hashes
// of the text beside the hashes of the calibration prompts.
void add_curves(Bundle& bundle, const Curves& curves, const PredictedKl& prediction);
// A bundle's own prediction, from its provenance; nullopt if no curves were measured. InputError naming `where` if it
// is damaged.
std::optional<PredictedKl> prediction_of(const Bundle& bundle, const std::string& where);

// As save_bundle() of bundle.h, with curves.json among the files of the manifest.
void save_bundle(const Bundle& bundle, const Curves& curves, const fs::path& directory, bool overwrite);
// The curves of a bundle that load_bundle() accepted; nullopt if it has none. InputError for a damaged file, or if
// layers or head size differ from the bundle's.
std::optional<Curves> load_curves(const fs::path& directory, const Bundle& bundle);

}  // namespace oscar
