// Measured curves: what each side (keys or values) of each layer costs in KL when it alone is quantized, at several
// width profiles. oscar-fit measures them, chooses widths by them and leaves them in the bundle as curves.json
// (schemas/curves.schema.json), so that other budgets need no new pass and people see where the bytes go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "bundle/bundle.h"
#include "layout/side.h"
#include "rotation/profile_allocation.h"

namespace oscar {

inline constexpr const char* kCurvesName = "curves.json";
inline constexpr std::int64_t kCurvesFormatVersion = 1;

struct CurvePoint {
  Widths widths{};
  double kl = 0.0;                // mean over scored tokens, nats, the rounding of activations taken off
  double error = 0.0;             // standard error over the sequences
  std::vector<double> sequences;  // [S] mean KL of each sequence
};

struct SideCurve {
  std::int64_t layer = 0;
  Side side = Side::kKey;
  std::vector<CurvePoint> points;  // ascending bits
  // [35] closed form of each of falling_profiles(), in a unit that all sides share; empty in files of before.
  std::vector<double> closed_form;
};

// What the whole cache costs with all sides quantized, measured for one of the allocations of a budget.
struct WholePoint {
  double bits = 0.0;               // the budget
  std::string from;                // closed_form | curves: what chose the widths
  std::vector<Widths> key, value;  // [L]
  double kl = 0.0, error = 0.0;    // nats, the rounding of activations included; standard error over the sequences
  std::vector<double> sequences;   // [S]
};

struct Curves {
  std::string model_fingerprint, statistics_sha256, tool_version;
  Json options = Json::object();  // of the fit whose transforms were measured, without its budget
  Json text = Json::object();     // name, and sha256 of the prompts
  // Hashes of the text, which verify must not score: {sha256, documents, passages} (calibration_hashes.h). They stand
  // in calibration_hashes.json of the bundle and not in curves.json; empty where none are kept.
  Json text_hashes = Json::object();
  std::int64_t head_dim = 0, sink = 0, recent = 0, context = 0, sequences = 0;
  std::string dtype;         // of the activations
  double rounding_kl = 0.0;  // KL that activations' rounding alone causes; 0 in FP32
  // Of latent attention, whose one vector is key and value: a layer has one curve, with both at its widths, and the
  // sides of points and wholes are equal.
  bool one_vector = false;
  std::vector<SideCurve> curves;   // layer by layer, keys before values; of one vector as Side::kKey
  std::vector<WholePoint> wholes;  // by ascending budget

  std::size_t sides() const { return one_vector ? 1 : 2; }  // of each layer
  std::int64_t layers() const { return static_cast<std::int64_t>(curves.size() / sides()); }
};

// "keys", "values" or "vectors": what a curve is of, for people.
const char* curve_side_name(const Curves& curves, Side side);

// Mean and standard error of numbers that are one for each sequence; error 0 for a single one.
CurvePoint curve_point(const Widths& widths, std::vector<double> sequences);

Json curves_to_json(const Curves& curves);
// InputError naming `where` for anything missing, of a wrong type, out of range or of a newer version.
Curves curves_from_json(const Json& json, const std::string& where);

// KL of a whole: measured on the text of the curves, or the sum over sides.
struct PredictedKl {
  double kl = 0.0, error = 0.0;                    // nats; standard error over the sequences
  std::int64_t context = 0, sink = 0, recent = 0;  // what it holds for
  bool operator==(const PredictedKl&) const = default;
};

// A bundle whose widths come from curves: their prediction and their text in its provenance, the hashes of the text
// beside those of the calibration prompts.
void add_curves(Bundle& bundle, const Curves& curves, const PredictedKl& prediction);
// A bundle's own prediction, in its provenance; nothing where no curves were measured.
// InputError naming `where` for one that is damaged.
std::optional<PredictedKl> prediction_of(const Bundle& bundle, const std::string& where);

// As save_bundle() of bundle.h, with curves.json among the files that the manifest lists.
void save_bundle(const Bundle& bundle, const Curves& curves, const fs::path& directory, bool overwrite);
// The curves of a bundle that load_bundle() has found sound; nothing where it has none. InputError for a damaged file,
// or one of other layers or another head size than the bundle's.
std::optional<Curves> load_curves(const fs::path& directory, const Bundle& bundle);

}  // namespace oscar
