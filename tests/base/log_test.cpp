#include "base/log.h"

#include <gtest/gtest.h>

#include "base/progress.h"

namespace oscar {
namespace {

constexpr const char* kHostile = "x\x1b[2J\xc2\x9b\xe2\x80\xae\xff\ny";
constexpr const char* kShown = "x\\x1b[2J\\u009b\\u202e\\xff\\x0ay";

TEST(Log, EscapesEveryMessage) {
  testing::internal::CaptureStderr();
  log_info(kHostile);
  log_warning(kHostile);
  log_error(kHostile);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            std::string(kShown) + "\nwarning: " + kShown + "\nerror: " + kShown + "\n");
}

TEST(Log, EscapesResultsAndKeepsTheirLines) {
  testing::internal::CaptureStdout();
  print_result("a\tb\n\x1b]0;title\x07\n");
  std::fflush(stdout);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "a\tb\n\\x1b]0;title\\x07\n");
}

TEST(Log, QuietKeepsResultsAndDropsSummaries) {
  set_log_level(LogLevel::kQuiet);
  testing::internal::CaptureStdout();
  print_result("result\n");
  print_summary("summary\n");
  std::fflush(stdout);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "result\n");
  set_log_level(LogLevel::kNormal);
}

TEST(Progress, TheRateIsThatOfTheRecentPast) {
  const RecentRate::Time start{};
  const auto at = [&](int seconds) { return start + std::chrono::seconds(seconds); };
  RecentRate rate(start);
  for (int second = 1; second <= 100; ++second) EXPECT_EQ(rate.at(at(second), 10 * second), 10.0) << second;
  // A stop of 1,000 seconds, and after it the same speed again.
  EXPECT_LT(rate.at(at(1101), 1010), 1.0);
  for (int second = 1102; second < 1105; ++second) rate.at(at(second), 1010 + 10 * (second - 1101));
  EXPECT_EQ(rate.at(at(1105), 1050), 10.0);
  // Steps longer than the recent past: the last one counts.
  RecentRate slow(start);
  slow.at(at(300), 1);
  EXPECT_NEAR(slow.at(at(400), 2), 0.01, 1e-9);
}

TEST(Progress, EscapesLabelUnitAndNote) {
  testing::internal::CaptureStderr();
  Progress progress("fit\x1b[2J", 2, "steps\xff");
  progress.set_note("trial\xc2\x9b");
  progress.advance(2);
  progress.finish();
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos) << text;
  EXPECT_NE(text.find("fit\\x1b[2J: 2 of 2 steps\\xff"), std::string::npos) << text;
}

}  // namespace
}  // namespace oscar
