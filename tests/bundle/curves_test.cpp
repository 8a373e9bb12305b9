// curves.json: round trip, what is refused, and the allocation over made curves.
#include "bundle/curves.h"

#include "bundle/curve_allocation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/errors.h"
#include "support/message_of.h"

namespace oscar {
namespace {

using ::testing::HasSubstr;

// Two layers of head size 64: the keys of layer 1 carry ten times the KL of the others.
Curves made_curves() {
  Curves c;
  c.model_fingerprint = "m";
  c.statistics_sha256 = "s";
  c.tool_version = "1";
  c.options = {{"method", "waterfill"}};
  c.text = {{"name", "t"}, {"sha256", "h"}};
  c.text_hashes = {{"sha256", "h"}, {"documents", {"0123456789abcdef"}}, {"passages", Json::array()}};
  c.head_dim = 64, c.sink = 64, c.recent = 256, c.context = 2048, c.sequences = 2;
  c.dtype = "float32";
  for (std::int64_t place = 0; place < 4; ++place) {
    const double size = place == 2 ? 0.1 : 0.01;
    SideCurve curve{place / 2, place % 2 == 0 ? Side::kKey : Side::kValue, {}, {}};
    curve.points.push_back(curve_point({0, 0, 0, 0}, {0.9 * size, 1.1 * size}));
    curve.points.push_back(curve_point({2, 1, 0, 0}, {0.1 * size, 0.1 * size}));  // 1 bit
    curve.points.push_back(curve_point({4, 4, 2, 2}, {0.0, 0.002 * size}));       // 3.5 bits
    c.curves.push_back(curve);
  }
  return c;
}

TEST(Curves, PointsHaveMeanAndStandardError) {
  const CurvePoint point = curve_point({1, 0, 0, 0}, {1.0, 2.0, 3.0, 6.0});
  EXPECT_DOUBLE_EQ(point.kl, 3.0);
  EXPECT_NEAR(point.error, std::sqrt(14.0 / 3.0 / 4.0), 1e-12);
  EXPECT_EQ(curve_point({}, {5.0}).error, 0.0);
}

TEST(Curves, AllocationGoesWhereTheKlIsAndAddsUp) {
  Curves c = made_curves();
  c.rounding_kl = 0.5;
  EXPECT_DOUBLE_EQ(profile_bits({2, 1, 0, 0}, 64), 1.0);
  const CurveAllocation least = allocate_curves(c, 0.25);  // one side of four can have a bit
  EXPECT_EQ(least.key, (std::vector<Widths>{{0, 0, 0, 0}, {2, 1, 0, 0}}));
  EXPECT_EQ(least.value, (std::vector<Widths>{{0, 0, 0, 0}, {0, 0, 0, 0}}));
  EXPECT_NEAR(least.predicted.kl, 0.5 + 0.03 + 0.01, 1e-12);
  // Errors of one text go the same way in all layers: they add up, not their squares.
  EXPECT_NEAR(least.predicted.error, 3 * 0.001, 1e-12);
  EXPECT_EQ(least.predicted.context, 2048);
  const CurveAllocation more = allocate_curves(c, 1.625);
  EXPECT_EQ(more.key[1], (Widths{4, 4, 2, 2}));
  EXPECT_EQ(more.value, (std::vector<Widths>{{2, 1, 0, 0}, {2, 1, 0, 0}}));
  EXPECT_THROW(allocate_curves(c, 9.0), UsageError);
}

// End-to-end KLs that were measured decide between allocations, for their own budget alone, and are what is predicted.
TEST(Curves, TheBetterWholeIsTaken) {
  Curves c = made_curves();
  const std::vector<Widths> one(2, Widths{1, 0, 0, 0}), two(2, Widths{2, 0, 0, 0});
  c.end_to_end.push_back({1.5, "measured", two, one, 0.2, 0.02, {0.1, 0.3}});
  c.end_to_end.push_back({1.5, "analytic", one, two, 0.3, 0.01, {0.19, 0.41}});  // gains .09 and .11: .1 +- .01
  const CurveAllocation best = allocate_curves(c, 1.5);
  EXPECT_EQ(best.key, two);
  EXPECT_EQ(best.value, one);
  EXPECT_EQ(best.predicted, (PredictedKl{0.2, 0.02, 2048, 64, 256}));
  c.end_to_end[1].sequences = {0.18, 0.42};  // gains .08 and .12: .1 +- .02, five errors, but of two sequences
  EXPECT_EQ(allocate_curves(c, 1.5).key, one);
  c.end_to_end[0].sequences.assign(8, 0.0);
  c.end_to_end[1].sequences = {0.0, 0.1, 0.0, 0.1, 0.0, 0.1, 0.0, 0.1};  // .05 +- .019: more than two errors, of eight
  EXPECT_EQ(allocate_curves(c, 1.5).key, two);
  c.end_to_end[1].sequences[7] = c.end_to_end[1].sequences[5] = 0.0;  // .025 +- .016
  EXPECT_EQ(allocate_curves(c, 1.5).key, one);
  // Gains .002 to .06, of .016 +- .0147, but a third or so of each sequence.
  c.end_to_end[0] = {1.5, "measured", two, one, 0.0325, 0.02, {0.004, 0.012, 0.010, 0.104}};
  c.end_to_end[1] = {1.5, "analytic", one, two, 0.05, 0.03, {0.006, 0.018, 0.0145, 0.1615}};
  EXPECT_EQ(allocate_curves(c, 1.5).key, two);
  std::swap(c.end_to_end[0].sequences, c.end_to_end[1].sequences);
  std::swap(c.end_to_end[0].kl, c.end_to_end[1].kl);
  EXPECT_EQ(allocate_curves(c, 1.5).key, one);
  EXPECT_EQ(allocate_curves(c, 1.625).key[1], (Widths{4, 4, 2, 2}));
}

// Points of equal KL and analytic costs that say otherwise: each is followed as far as it is known.
TEST(Curves, ClosedFormsAllowProfilesThatNobodyMeasured) {
  Curves c = made_curves();
  for (SideCurve& curve : c.curves) {
    curve.analytic.assign(falling_profiles().size(), 1.0);
    for (std::size_t i = 0; i < curve.analytic.size(); ++i) {
      if (falling_profiles()[i][0] >= 2) curve.analytic[i] = 1e-3;  // two bits for the first block are all it takes
    }
  }
  const CurveAllocation cheap = allocate_estimates(c, 0.625);
  EXPECT_EQ(cheap.key[1], (Widths{2, 0, 0, 0}));  // 0.625 bits, never measured
  const CurveAllocation analytic = allocate_analytic(c, 0.625);
  EXPECT_EQ(analytic.value[0], (Widths{2, 0, 0, 0}));
  EXPECT_GT(analytic.predicted.kl, 0.0);
}

TEST(Curves, RoundTrip) {
  Curves made = made_curves();
  made.curves[1].analytic.assign(falling_profiles().size(), 0.5);
  made.end_to_end.push_back(
      {1.5, "measured", {{4, 2, 0, 0}, {1, 0, 0, 0}}, {{2, 2, 2, 2}, {0, 0, 0, 0}}, 0.375, 0.125, {0.25, 0.5}});
  const Json json = curves_to_json(made);
  const Curves back = curves_from_json(parse_json(dump_json(json), "f"), "f");
  EXPECT_EQ(dump_json(curves_to_json(back)), dump_json(json));
  EXPECT_EQ(back.layers(), 2);
  EXPECT_EQ(dump_json(json).find("0123456789abcdef"), std::string::npos) << "hashes have a file of their own";
}

// Latent attention: a curve for each layer, whose widths keys and values share.
TEST(Curves, OfLatentAttention) {
  Curves c = made_curves();
  c.latent = true;
  std::erase_if(c.curves, [](const SideCurve& curve) { return curve.side == Side::kValue; });
  EXPECT_EQ(c.layers(), 2);
  const CurveAllocation half = allocate_curves(c, 0.5);  // one of two layers can have a bit
  EXPECT_EQ(half.key, (std::vector<Widths>{{0, 0, 0, 0}, {2, 1, 0, 0}}));
  EXPECT_EQ(half.value, half.key);
  EXPECT_NEAR(half.predicted.kl, 0.01 + 0.01, 1e-12);
  c.end_to_end.push_back({0.5, "measured", half.key, half.value, 0.375, 0.125, {0.25, 0.5}});
  const Json json = curves_to_json(c);
  const Curves back = curves_from_json(parse_json(dump_json(json), "f"), "f");
  EXPECT_TRUE(back.latent);
  EXPECT_EQ(dump_json(curves_to_json(back)), dump_json(json));
  Json mixed = json, apart = json;
  mixed["curves"][1]["side"] = "value";
  EXPECT_THROW(curves_from_json(mixed, "f"), InputError);
  apart["end_to_end"][0]["value"][0] = {1, 0, 0, 0};
  EXPECT_THROW(curves_from_json(apart, "f"), InputError);

  // With refined profiles, which the estimates then offer, too.
  EXPECT_EQ(json["format_version"], 2);
  for (SideCurve& curve : c.curves) {
    curve.analytic.assign(latent_profiles().size(), 1.0);
    curve.analytic[latent_profiles().size() - 2] = 1e-6;  // 4-4-4-2 refined
  }
  c.curves[0].points.push_back(curve_point({4, 2, 1, 2, true}, {0.25, 0.5}));
  c.end_to_end.clear();
  EXPECT_EQ(allocate_estimates(c, 4.0).key, (std::vector<Widths>(2, {4, 4, 4, 2, true})));
  c.end_to_end.push_back({3.5,
                          "measured",
                          {{4, 2, 1, 0}, {4, 4, 4, 2, true}},
                          {{4, 2, 1, 0}, {4, 4, 4, 2, true}},
                          0.375,
                          0.125,
                          {0.25, 0.5}});
  const Json refined = curves_to_json(c);
  EXPECT_EQ(refined["format_version"], 3);
  EXPECT_EQ(refined["end_to_end"][0]["key"][1].dump(), R"([4,4,4,2,"refined"])");
  EXPECT_EQ(dump_json(curves_to_json(curves_from_json(parse_json(dump_json(refined), "f"), "f"))), dump_json(refined));
  for (const char* widths :
       {"[2, 2, 1, 2, \"refined\"]", "[4, 1, 2, 2, \"refined\"]", "[4, 2, 1, 0, \"refined\"]", "[4, 2, 1, 2]"}) {
    Json bad = refined;
    bad["curves"][0]["points"][0]["widths"] = Json::parse(widths);
    EXPECT_THROW(curves_from_json(bad, "f"), InputError) << widths;
  }
  Json old = refined;  // which a version without refined profiles wrote
  old["format_version"] = 2;
  EXPECT_THAT(message_of<InputError>([&] { curves_from_json(old, "f"); }),
              HasSubstr("expected four of 0, 1, 2, 4 that do not rise; \"refined\" is for format_version 3"));
}

TEST(Curves, ABundleCarriesPredictionAndHashesOfTheText) {
  Curves c = made_curves();
  Bundle bundle;
  EXPECT_EQ(prediction_of(bundle, "b"), std::nullopt);
  bundle.calibration_hashes.push_back({{"prompts", {{"sha256", "collected"}}}});
  add_curves(bundle, c, {0.25, 0.5, 2048, 64, 256});
  const std::optional<PredictedKl> found = prediction_of(bundle, "b");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kl, 0.25);
  EXPECT_EQ(found->recent, 256);
  ASSERT_EQ(bundle.calibration_hashes.size(), 2u);
  EXPECT_EQ(bundle.calibration_hashes[1]["prompts"], c.text_hashes);
  c.text_hashes = Json::object();  // --no-text-hashes
  add_curves(bundle, c, {0.25, 0.5, 2048, 64, 256});
  EXPECT_EQ(bundle.calibration_hashes.size(), 2u);
  bundle.provenance["prediction"]["kl"] = "none";
  EXPECT_THROW(prediction_of(bundle, "b"), InputError);
}

TEST(Curves, RefusesWhatIsDamaged) {
  const Json sound = curves_to_json(made_curves());
  const auto refused = [&](const char* what, const std::function<void(Json&)>& change) {
    Json json = sound;
    change(json);
    EXPECT_THROW(curves_from_json(json, "f"), InputError) << what;
  };
  refused("newer", [](Json& j) { j["format_version"] = 3; });
  refused("format", [](Json& j) { j["format"] = "other"; });
  refused("no curves", [](Json& j) { j["curves"] = Json::array(); });
  refused("a side is missing", [](Json& j) { j["curves"].erase(3); });
  refused("order", [](Json& j) { std::swap(j["curves"][0], j["curves"][1]); });
  refused("rising widths", [](Json& j) { j["curves"][0]["points"][1]["widths"] = {1, 2, 0, 0}; });
  refused("width 3", [](Json& j) { j["curves"][0]["points"][1]["widths"] = {3, 2, 0, 0}; });
  refused("width -1", [](Json& j) { j["curves"][0]["points"][1]["widths"] = {-1, 0, 0, 0}; });
  refused("width 257", [](Json& j) { j["curves"][0]["points"][1]["widths"] = {257, 0, 0, 0}; });
  refused("five widths", [](Json& j) { j["curves"][0]["points"][1]["widths"] = {1, 0, 0, 0, 0}; });
  refused("twice", [](Json& j) { j["curves"][0]["points"][1]["widths"] = {0, 0, 0, 0}; });
  refused("no points", [](Json& j) { j["curves"][0]["points"] = Json::array(); });
  refused("a point that is none", [](Json& j) { j["curves"][0]["points"][0] = 7; });
  refused("sequences", [](Json& j) { j["curves"][0]["points"][0]["sequences"] = {0.1}; });
  refused("negative", [](Json& j) { j["curves"][0]["points"][0]["sequences"] = {0.1, -0.1}; });
  refused("no number", [](Json& j) { j["curves"][0]["points"][0]["sequences"] = {0.1, nullptr}; });
  refused("head size", [](Json& j) { j["head_dim"] = 65; });
  refused("rounding", [](Json& j) { j["rounding_kl"] = -1; });
}

}  // namespace
}  // namespace oscar
