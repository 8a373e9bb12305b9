#include "base/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "base/interrupt.h"

namespace oscar {
namespace {

using ::testing::HasSubstr;

std::string fault_of(std::uint64_t steps, std::uint64_t bytes) {
  try {
    Budget::hold(bytes);
    Budget::spend(steps);
  } catch (const BudgetError& e) {
    return e.what();
  }
  return "(no BudgetError)";
}

TEST(Budget, EndsWhenMoreThanTheLimitIsSpent) {
  const Budget budget("the reader", {20'000'000, 1000});
  EXPECT_EQ(fault_of(20'000'000, 1000), "(no BudgetError)");
  EXPECT_EQ(fault_of(1, 0), "the reader takes too much work (more than 20 million steps)");
}

TEST(Budget, EndsWhenMoreThanTheLimitIsHeld) {
  const Budget budget("the reader", {1000, 1024});
  EXPECT_EQ(fault_of(0, 1024), "(no BudgetError)");
  EXPECT_EQ(fault_of(0, 1), "the reader takes too much memory (more than 1.0 KiB)");
}

TEST(Budget, AnInnerOneHasItsOwnLimitsAndTheOuterOneGoesOn) {
  const Budget outer("outer", {100, 100});
  EXPECT_EQ(fault_of(90, 90), "(no BudgetError)");
  {
    const Budget inner("inner", {1000, 1000});
    EXPECT_EQ(fault_of(1000, 1000), "(no BudgetError)");
    EXPECT_THAT(fault_of(1, 0), HasSubstr("inner takes too much work"));
  }
  EXPECT_EQ(fault_of(10, 10), "(no BudgetError)");
  EXPECT_THAT(fault_of(1, 0), HasSubstr("outer takes too much work"));
}

TEST(Budget, WithoutOneNothingIsLimited) { EXPECT_EQ(fault_of(1ULL << 60, 1ULL << 60), "(no BudgetError)"); }

TEST(Budget, TimeIsChargedAsSteps) {
  const Budget budget("the reader", {50'000'000, 1000});
  const std::uint64_t start = Budget::thread_time();
  EXPECT_THROW(
      {
        for (std::uint64_t now = start; now < start + 2'000'000'000;) now = Budget::spend_time(now);
      },
      BudgetError);
}

// In a process of its own, because the flag stays set.
TEST(BudgetDeathTest, InterruptsAreNoticedWhereverWorkIsCharged) {
  EXPECT_EXIT(
      {
        install_interrupt_handler();
        std::raise(SIGTERM);
        try {
          for (int i = 0; i < 100; ++i) Budget::spend(1'000'000);
        } catch (const InterruptedError&) {
          std::_Exit(7);
        }
        std::_Exit(8);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace oscar
