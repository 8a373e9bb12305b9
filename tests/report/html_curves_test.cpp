// The page's part with measured curves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/html/parts.h"

namespace oscar {
namespace {

using testing::HasSubstr;
using testing::Not;

VerifyReport made_report() {
  Curves c;
  c.head_dim = 64, c.sink = 64, c.recent = 256, c.context = 2048, c.sequences = 2;
  c.text = {{"name", "<prompts>.txt"}};
  for (std::int64_t place = 0; place < 2; ++place) {
    SideCurve curve{0, place == 0 ? Side::kKey : Side::kValue, {}};
    curve.points.push_back(curve_point({0, 0, 0, 0}, {0.01, 0.03}));
    curve.points.push_back(curve_point({2, 1, 0, 0}, {0.0, 0.0}));
    c.curves.push_back(curve);
  }
  VerifyReport r;
  BundleFacts& bundle = r.bundles.emplace_back();
  bundle.source = "b";
  bundle.curves = c;
  bundle.key_widths = {{2, 1, 0, 0}};
  bundle.value_widths = {{4, 4, 4, 4}};  // edited: no point of the curve
  return r;
}

TEST(HtmlCurves, TheChoiceIsShownFolded) {
  const std::string page = html::curve_tables(made_report());
  EXPECT_THAT(page, HasSubstr("<details><summary>Bits of each layer of b</summary>"));
  EXPECT_THAT(page, HasSubstr("<tr><td>0</td><td>2-1-0-0</td><td>1</td><td>0</td>"));
  EXPECT_THAT(page, HasSubstr("<td>4-4-4-4</td><td>4.5</td><td>not measured</td>"));
  EXPECT_THAT(page, HasSubstr("2 sequences of 2048 tokens of &lt;prompts&gt;.txt"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(HtmlCurves, AnEstimatedChoiceHasItsKl) {
  VerifyReport r = made_report();
  r.bundles[0].curves->curves[1].analytic.assign(falling_profiles().size(), 1.0);
  EXPECT_THAT(html::curve_tables(r), Not(HasSubstr("not measured")));
}

TEST(HtmlCurves, NothingWithoutCurves) {
  VerifyReport r = made_report();
  r.bundles[0].key_widths.clear();
  EXPECT_EQ(html::curve_tables(r), "");
  r = made_report();
  r.bundles[0].curves.reset();
  EXPECT_EQ(html::curve_tables(r), "");
}

}  // namespace
}  // namespace oscar
