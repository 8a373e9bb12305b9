// Where a target's budget measures more than it predicts.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "pipeline/fit/fit_measure.h"
#include "support/message_of.h"

namespace oscar {
namespace {

TargetChoice ladder() {
  TargetChoice choice;
  for (const auto& [bits, kl] : {std::pair{1.0, 0.04}, {1.5, 0.02}, {2.0, 0.012}, {3.0, 0.008}}) {
    choice.rows.push_back({bits, {kl, 0.0, 1024, 64, 256}, false});
  }
  return choice;
}

Measured measured(double kl) {
  Measured m{2048, 8, {}};
  m.quality.kl.mean = kl;
  m.quality.kl.interval = Interval{0.9 * kl, 1.1 * kl};
  return m;
}

TEST(Climb, GoesAsFarAsThePredictionErred) {
  TargetArguments target;
  target.preset = "smallest";  // .04
  TargetChoice choice = ladder();
  climb(choice, target, measured(0.05), "");  // 1.25 times: .025 is expected of the next
  EXPECT_EQ(choice.bits(), 1.5);
  choice = ladder();
  climb(choice, target, measured(0.101), "");  // 2.5 times: .05 of the next, .03 of that after
  EXPECT_EQ(choice.bits(), 2.0);
  choice = ladder();
  climb(choice, target, measured(4.0), "");  // none is expected to meet it: the largest has the last word
  EXPECT_EQ(choice.bits(), 3.0);
}

TEST(Climb, SaysWhereNoBudgetIsLeft) {
  TargetArguments target;
  target.kl = 0.005;
  TargetChoice choice = ladder();
  choice.chosen = 3;
  const std::string message =
      message_of<Error>([&] { climb(choice, target, measured(0.016), "; the curves are kept"); });
  EXPECT_NE(message.find("--target-kl: no budget meets the KL of 0.005: 3 bits have a KL of 0.016 +- 0.0016"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("2 times the prediction"), std::string::npos) << message;
  EXPECT_TRUE(message.ends_with("; the curves are kept")) << message;
}

TEST(MeasuredText, IsWhatWasMeasured) {
  const HeldOutText text{{std::vector<std::int32_t>(2048)}, 2048, 9000, false};
  Measured m = measured(0.0123);
  m.quality.ppl_ratio = 1.0104, m.quality.same_top1 = 0.9432;
  EXPECT_EQ(measured_text(text, m, nullptr),
            "measured  KL 0.0123 +- 0.0012, PPL ratio 1.010, same top 94.3%, on 8 held-out sequences of 2,048\n"
            "          tokens\n");
  TargetArguments target;
  target.preset = "balanced";
  EXPECT_NE(measured_text(text, m, &target).find(": meets preset balanced of 0.02\n"), std::string::npos);
  const HeldOutText longer{{std::vector<std::int32_t>(2048)}, 8192, 9000, false};
  EXPECT_NE(measured_text(longer, m, nullptr).find("measured at 2,048 tokens, and the bundle serves 8,192"),
            std::string::npos);
  EXPECT_NE(measured_text(text, measured(0.2), nullptr).find("above the default gate of 0.05"), std::string::npos);
}

}  // namespace
}  // namespace oscar
