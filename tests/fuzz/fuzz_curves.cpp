// curves.json of a bundle: read, allocated from, and written again.
#include <cmath>

#include "base/errors.h"
#include "bundle/curve_allocation.h"
#include "bundle/curves.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {
namespace {

SideCurve made_curve(std::int64_t place) {
  SideCurve curve{place / 2, place % 2 == 0 ? Side::kKey : Side::kValue, {}, {}};
  curve.points.push_back(curve_point({0, 0, 0, 0}, {0.5, 0.25}));
  curve.points.push_back(curve_point({2, 1, 0, 0}, {0.01, 0.02}));
  curve.points.push_back(curve_point({4, 4, 2, 2}, {0.0, 0.001}));
  return curve;
}

}  // namespace

std::vector<std::string> seeds() {
  Curves curves;
  // Made with their sizes, because GCC 12 warns of assigned literals here.
  curves.model_fingerprint = std::string(64, '1'), curves.statistics_sha256 = std::string(64, '0');
  curves.tool_version = std::string(1, '1'), curves.dtype = std::string("float32");
  curves.options = {{"method", "waterfill"}};
  curves.text = {{"name", "t"}, {"sha256", "h"}};
  curves.head_dim = 64, curves.sink = 64, curves.recent = 256, curves.context = 2048, curves.sequences = 2;
  for (std::int64_t place = 0; place < 4; ++place) curves.curves.push_back(made_curve(place));
  std::vector<std::string> texts{dump_json(curves_to_json(curves))};
  curves.latent = true;
  std::erase_if(curves.curves, [](const SideCurve& curve) { return curve.side == Side::kValue; });
  texts.push_back(dump_json(curves_to_json(curves)));
  return texts;
}

void read_input(std::string_view bytes) {
  const Curves curves = curves_from_json(parse_json(bytes, "curves.json"), "curves.json");
  require(curves.layers() > 0 && curves.curves.size() % curves.sides() == 0, "each layer has all its sides");
  for (const SideCurve& curve : curves.curves) {
    require(!curve.points.empty(), "a side has points");
    for (const CurvePoint& point : curve.points) {
      require(std::isfinite(point.kl) && point.kl >= 0.0, "a KL is a number, and not negative");
      require(std::isfinite(point.error) && point.error >= 0.0, "so is its error");
    }
  }
  try {
    const CurveAllocation allocation = allocate_curves(curves, 1.5);
    require(std::ssize(allocation.key) == curves.layers(), "every layer has widths");
    require(allocation.value.size() == allocation.key.size(), "on both sides");
    require(std::isfinite(allocation.predicted.kl), "what is predicted is a number");
  } catch (const UsageError&) {  // a budget that these points do not hold
  }
  const Json again = curves_to_json(curves);
  require(dump_json(curves_to_json(curves_from_json(again, "again"))) == dump_json(again), "what is written is read");
}

}  // namespace oscar::fuzz
