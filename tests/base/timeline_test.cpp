#include "base/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace oscar {
namespace {

using testing::ElementsAre;

// A clock that stands still but for what the test says.
class TimelineTest : public testing::Test {
 protected:
  std::map<std::string, double> seconds() {
    std::map<std::string, double> out;
    for (const Timeline::Row& row : timeline_.rows()) out[row.name] = row.seconds;
    return out;
  }
  double now_ = 100;
  Timeline timeline_{{"reading", "computing"}, [this] { return now_; }};
};

TEST_F(TimelineTest, TimeOutsideOfPhasesIsOther) {
  now_ += 2;
  {
    const Timeline::Phase reading(&timeline_, "reading");
    now_ += 3;
  }
  now_ += 0.5;
  EXPECT_EQ(seconds(), (std::map<std::string, double>{{"reading", 3}, {"computing", 0}, {"other", 2.5}}));
  EXPECT_EQ(timeline_.wall(), 5.5);
}

TEST_F(TimelineTest, AnInnerPhaseIsNotCountedInTheOuter) {
  {
    const Timeline::Phase computing(&timeline_, "computing");
    now_ += 1;
    for (int i = 0; i < 2; ++i) {
      const Timeline::Phase reading(&timeline_, "reading");
      now_ += 10;
      const Timeline::Phase again(&timeline_, "computing");  // also inside of itself
      now_ += 100;
    }
    now_ += 4;
  }
  EXPECT_EQ(seconds(), (std::map<std::string, double>{{"reading", 20}, {"computing", 205}, {"other", 0}}));
}

TEST_F(TimelineTest, AnExceptionClosesPhases) {
  try {
    const Timeline::Phase computing(&timeline_, "computing");
    now_ += 1;
    throw 1;
  } catch (int) {
  }
  now_ += 7;
  EXPECT_EQ(seconds(), (std::map<std::string, double>{{"reading", 0}, {"computing", 1}, {"other", 7}}));
}

TEST_F(TimelineTest, OpenPhasesCountUntilNow) {
  const Timeline::Phase computing(&timeline_, "computing");
  now_ += 6;
  EXPECT_EQ(seconds()["computing"], 6);
  now_ += 1;
  EXPECT_EQ(seconds()["computing"], 7);
  EXPECT_EQ(timeline_.wall(), 7);
}

TEST_F(TimelineTest, RowsKeepTheirOrderAndStrangersFollow) {
  { const Timeline::Phase stranger(&timeline_, "stranger"); }
  std::vector<std::string> names;
  for (const Timeline::Row& row : timeline_.rows()) names.push_back(row.name);
  EXPECT_THAT(names, ElementsAre("reading", "computing", "stranger", "other"));
}

TEST_F(TimelineTest, SettlesBeforeEachSwitch) {
  // What a phase started and did not wait for: it takes 5 seconds, which belong to that phase.
  bool running = false;
  timeline_.set_settle([&] {
    if (running) now_ += 5;
    running = false;
  });
  {
    const Timeline::Phase computing(&timeline_, "computing");
    running = true;
  }
  {
    const Timeline::Phase reading(&timeline_, "reading");
    now_ += 1;
  }
  EXPECT_EQ(seconds(), (std::map<std::string, double>{{"reading", 1}, {"computing", 5}, {"other", 0}}));
}

TEST_F(TimelineTest, NullMeasuresNothing) {
  const Timeline::Phase none(nullptr, "reading");
  now_ += 1;
  EXPECT_EQ(seconds()["other"], 1);
}

TEST_F(TimelineTest, LinesLeaveOutWhatTookNoTime) {
  {
    const Timeline::Phase computing(&timeline_, "computing");
    now_ += 3;
  }
  now_ += 1;
  EXPECT_THAT(timeline_lines(timeline_.rows()),
              ElementsAre("  computing              3.000 s   75.0%", "  other                  1.000 s   25.0%",
                          "  wall time              4.000 s  100.0%"));
}

TEST_F(TimelineTest, LinesAreAsWideAsTheLongestName) {
  {
    const Timeline::Phase forward(&timeline_, "forward turboquant2.5");
    now_ += 3;
  }
  now_ += 1;
  EXPECT_THAT(timeline_lines(timeline_.rows()),
              ElementsAre("  forward turboquant2.5     3.000 s   75.0%", "  other                     1.000 s   25.0%",
                          "  wall time                 4.000 s  100.0%"));
}

}  // namespace
}  // namespace oscar
