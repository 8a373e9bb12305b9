#include "verify/plan.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace oscar {
namespace {

ModelConfig qwen3_8b() {
  ModelConfig m;
  m.layers = 36, m.query_heads = 32, m.kv_heads = 8, m.head_dim = 128, m.max_position = 131072;
  return m;
}

const PlanRow& row_of(const MemoryPlan& plan, const std::string& id) {
  for (const PlanRow& r : plan.rows) {
    if (r.id == id) return r;
  }
  throw std::out_of_range(id);
}

TEST(Plan, LeavesOutAMethodThatTheModelRulesOutWithTheReason) {
  ModelConfig odd = qwen3_8b();
  odd.head_dim = 40;  // groups of 32 channels do not divide it
  const MemoryPlan plan =
      plan_memory(odd, std::uint64_t{80} << 30, std::uint64_t{16} << 30, {131072}, {64, 256, 1}, 2.25);
  EXPECT_GT(row_of(plan, "oscar").cells[0].bits, 2.0);
  ASSERT_FALSE(plan.do_not_fit.empty());
  for (const PlanGap& gap : plan.do_not_fit) {
    EXPECT_THROW(row_of(plan, gap.id), std::out_of_range);
    EXPECT_NE(plan_table(plan).find("left out: " + gap.id + ": method '" + gap.id + "' does not fit the model"),
              std::string::npos)
        << plan_table(plan);
    EXPECT_NE(plan_json(plan).find(gap.id), std::string::npos);
  }
}

TEST(Plan, PublishedSizesOfAnEightBillionModel) {
  const MemoryPlan plan =
      plan_memory(qwen3_8b(), std::uint64_t{80} << 30, std::uint64_t{16} << 30, {131072}, {64, 256, 1}, 2.25);
  const auto gib = [&](const char* id) {
    return static_cast<double>(row_of(plan, id).cells[0].sequence_bytes) / (std::uint64_t{1} << 30);
  };
  EXPECT_NEAR(gib("bf16"), 18.0, 0.01);
  EXPECT_NEAR(gib("fp8"), 9.0, 0.01);
  EXPECT_NEAR(gib("oscar"), 2.57, 0.01);
  EXPECT_NEAR(gib("waterfill"), 2.57, 0.01);  // at 2.25 bits, as oscar
  EXPECT_EQ(row_of(plan, "bf16").cells[0].batch, 3);
  EXPECT_EQ(row_of(plan, "oscar").longest_context, 131072);
  EXPECT_EQ(plan.rows.back().id, "bf16");  // the largest last
}

TEST(Plan, LongestContextIsTheLastThatFits) {
  const MemoryPlan plan =
      plan_memory(qwen3_8b(), std::uint64_t{24} << 30, std::uint64_t{16} << 30, {}, {64, 256, 1}, 2.25);
  const PlanRow& bf16 = row_of(plan, "bf16");
  EXPECT_EQ(bf16.longest_context, (std::int64_t{8} << 30) / 147456);
  EXPECT_EQ(bf16.cells.back().context, 131072);
  EXPECT_EQ(bf16.cells.back().batch, 0);
}

TEST(Plan, MemoryAsPeopleWriteIt) {
  EXPECT_EQ(parse_memory("24GiB"), std::uint64_t{24} << 30);
  for (const char* same : {"24G", "24g", "24Gi", "24 GiB", "24gib", "24576M"}) {
    EXPECT_EQ(parse_memory(same), std::uint64_t{24} << 30) << same;
  }
  EXPECT_EQ(parse_memory("80GB"), 80000000000u);
  EXPECT_EQ(parse_memory("1TiB"), std::uint64_t{1} << 40);
  EXPECT_EQ(parse_memory("1.5GiB"), std::uint64_t{3} << 29);
  EXPECT_EQ(parse_memory("1000"), 1000u);
  for (const char* bad : {"", "GiB", "24  GiB", "-1GiB", "24XiB", "24GG", "1e30GiB", "nan", "inf"})
    EXPECT_THROW(parse_memory(bad), UsageError) << bad;
}

TEST(Plan, Refusals) {
  EXPECT_THROW(plan_memory(qwen3_8b(), 100, 200, {}, {64, 256, 1}, 2.25), UsageError);
  EXPECT_THROW(plan_memory(qwen3_8b(), std::uint64_t{1} << 40, 200, {200000}, {64, 256, 1}, 2.25), UsageError);
}

}  // namespace
}  // namespace oscar
