// The rules by which the CUDA operators look at tables, on the host. tests/python/test_table_checks.py has those of the
// torch reference.
#include "kernels/check/table_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "oscar_kv/csrc/fault_text.h"

namespace oscar::kernels {
namespace {

// Two sequences of up to 512 tokens: sink 16, recent 48, four pages of codes, one of the sink and two of the ring.
struct Step {
  std::vector<std::int32_t> lengths{300, 100}, table{0, 1, 2, 3, 4, 5, 6, 7}, windows{0, 1, 2, 3, 4, 5};
  StepTables tables{};

  Step() {
    tables.lengths = lengths.data(), tables.table = table.data(), tables.window_table = windows.data();
    tables.batch = 2, tables.max_pages = 4, tables.pages = 8, tables.window_pages = 6;
    tables.sink = 16, tables.recent = 48, tables.sink_pages = 1, tables.ring_pages = 2;
  }
  std::string text() const {
    for (std::int32_t b = 0; b < tables.batch; ++b) {
      if (const FoundFault fault = tables(b); fault.kind != TableFault::kNone) {
        return oscar_kv::fault_text(fault, "sequence");
      }
    }
    return "";
  }
};

TEST(TableRules, SoundTables) {
  Step step;
  EXPECT_EQ(step.text(), "");
  step.tables.newest_only = true;
  EXPECT_EQ(step.text(), "");
}

TEST(TableRules, WhatAStepFollows) {
  const auto with = [](auto change) {
    Step step;
    change(step);
    return step.text();
  };
  EXPECT_EQ(with([](Step& s) { s.lengths[1] = -1; }), "the length of sequence 1 is -1, expected 0 or more");
  EXPECT_EQ(with([](Step& s) { s.table[3] = -1; }), "page 3 of sequence 0 is -1, expected 0 to 7");
  EXPECT_EQ(with([](Step& s) { s.table[4] = 8; }), "page 0 of sequence 1 is 8, expected 0 to 7");
  EXPECT_EQ(with([](Step& s) { s.lengths[0] = 400; }), "sequence 0 has codes in 6 pages, and its table has 4");
  EXPECT_EQ(with([](Step& s) { s.windows[0] = -1; }), "window page 0 of sequence 0 is -1, expected 0 to 5");
  EXPECT_EQ(with([](Step& s) { s.windows[5] = 6; }), "window page 2 of sequence 1 is 6, expected 0 to 5");
  EXPECT_EQ(with([](Step& s) { s.tables.positions = 299; }), "sequence 0 has positions up to 300, and phases have 299");
  EXPECT_EQ(with([](Step& s) { s.table[7] = -1; }), "") << "no code of the second sequence is there yet";
  EXPECT_EQ(with([](Step& s) { s.lengths[0] = 0, s.table[0] = s.windows[0] = -1; }), "") << "it is skipped";
  EXPECT_EQ(with([](Step& s) { s.table[0] = -1, s.tables.newest_only = true; }),
            "page 0 of sequence 0 is -1, expected 0 to 7");
  EXPECT_EQ(with([](Step& s) { s.tables.table = nullptr, s.tables.newest_only = true; }), "") << "no code is written";
}

// The window pages that are asked for are those of tokens that are read or written: counted one token at a time.
TEST(TableRules, WindowsInUse) {
  std::mt19937 engine(5);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(engine); };
  for (int run = 0; run < 2000; ++run) {
    StepTables t{};
    t.batch = 1, t.window_pages = 1, t.sink = draw(0, 150), t.recent = draw(0, 200);
    t.sink_pages = (t.sink + 63) / 64, t.ring_pages = (t.recent + 64) / 64 + draw(0, 1);
    t.newest_only = draw(0, 1) == 1;
    const std::int32_t n = draw(1, 700);
    const auto end = [&](int tokens) { return std::max(t.sink, tokens - t.recent); };
    ASSERT_EQ(t.coded_end(n), end(n));
    std::set<int> used;
    for (int p = 0; p < n; ++p) {
      if (t.newest_only ? p == n - 1 : p < t.sink || p >= end(n)) used.insert(t.window_column(p));
    }
    std::vector<std::int32_t> windows(static_cast<std::size_t>(t.sink_pages + t.ring_pages), 0);
    t.lengths = &n, t.window_table = windows.data();
    for (int c = 0; c < t.sink_pages + t.ring_pages; ++c) {
      windows[static_cast<std::size_t>(c)] = -1;
      const FoundFault fault = t(0);
      EXPECT_EQ(fault.kind == TableFault::kWindowPage && fault.place == c, used.contains(c)) << c << " of " << n;
      windows[static_cast<std::size_t>(c)] = 0;
    }
  }
}

TEST(TableRules, RunsAndTiles) {
  const auto run = [](PageRun r, std::int64_t rows = 100) {
    return oscar_kv::fault_text(RunTables{&r, rows, 8}(0), "run");
  };
  EXPECT_EQ(run({0, 64, 7, 0, 0}), "");
  EXPECT_EQ(run({0, 0, -1, 0, 0}), "") << "nothing to do";
  EXPECT_EQ(run({0, 64, -1, 0, 0}), "page 0 of run 0 is -1, expected 0 to 7");
  EXPECT_EQ(run({0, 1, 8, 0, 0}), "page 0 of run 0 is 8, expected 0 to 7");
  EXPECT_EQ(run({0, 64, 0, 1, 0}), "run 0 takes 64 slots from 1 on, and a page has 64");
  EXPECT_EQ(run({0, 2147483647, 0, 0, 0}), "run 0 takes 2147483647 slots from 0 on, and a page has 64");
  EXPECT_EQ(run({40, 64, 0, 0, 0}), "run 0 reads 64 rows from 40 on, and there are 100");
  EXPECT_EQ(run({-1, 2, 0, 0, 0}), "run 0 reads 2 rows from -1 on, and there are 100");
  EXPECT_EQ(run({-1, 2, 0, 0, 0}, -1), "") << "whole pages have no rows";
  EXPECT_EQ(run({0, 2, 0, 0, -3}), "the position of run 0 is -3, expected 0 or more");

  const auto fresh = [](NewRun r, std::int32_t positions = 0) {
    return oscar_kv::fault_text(NewRunTables{&r, 100, 8, 6, positions}(0), "run");
  };
  EXPECT_EQ(fresh({0, 64, -1, 0, 64, 5}), "");
  EXPECT_EQ(fresh({0, 64, 7, 0, 16, -1}), "");
  EXPECT_EQ(fresh({0, 64, -2, 0, 64, 5}), "page 0 of run 0 is -2, expected 0 to 7");
  EXPECT_EQ(fresh({0, 64, -1, 0, 64, 6}), "window page 0 of run 0 is 6, expected 0 to 5");
  EXPECT_EQ(fresh({0, 64, -1, 0, 70, 5}), "run 0 takes 64 slots from 6 on, and a page has 64");
  EXPECT_EQ(fresh({60, 64, -1, 0, 64, 5}), "run 0 reads 64 rows from 60 on, and there are 100");
  EXPECT_EQ(fresh({0, 64, -1, 0, 64, 5}, 100), "run 0 has positions up to 128, and phases have 100");

  // Two runs of a launch in one page would write its words at once.
  const std::vector<NewRun> shared{
      {0, 8, 3, 0, 64, -1}, {8, 0, 3, 8, 72, -1}, {8, 8, -1, 0, 0, 5}, {8, 8, -1, 0, 0, 5}, {16, 8, 3, 8, 72, 5}};
  for (std::int32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(oscar_kv::fault_text(NewRunTables{shared.data(), 100, 8, 6, 0}(i), "run"),
              i < 4 ? "" : "run 4 writes page 3, which run 0 writes");
  }
  const std::vector<PageRun> twice{{0, 8, 3, 0, 0}, {8, 8, 3, 8, 8}};
  EXPECT_EQ(oscar_kv::fault_text(RunTables{twice.data(), 100, 8}(1), "run"), "run 1 writes page 3, which run 0 writes");
  EXPECT_EQ(oscar_kv::fault_text(RunTables{twice.data(), -1, 8}(1), "run"), "") << "reads may";

  const auto tile = [](PastTile t) { return oscar_kv::fault_text(TileTables{&t, 50, 100, 8, 6, 0}(0), "tile"); };
  EXPECT_EQ(tile({0, 0, 64, 7, 0, 16}), "");
  EXPECT_EQ(tile({1, 0, 64, 5, 0, 0}), "");
  EXPECT_EQ(tile({2, 36, 50, 0, 0, 0}), "");
  EXPECT_EQ(tile({2, 36, 50, 1, 0, 0}), "tile 0 reads 50 rows from 1 on, and there are 50");
  EXPECT_EQ(tile({2, 51, 50, 0, 0, 0}), "tile 0 writes 50 rows from 51 on, and there are 100");
  EXPECT_EQ(tile({0, 0, 64, -1, 0, 0}), "page 0 of tile 0 is -1, expected 0 to 7");
  EXPECT_EQ(tile({1, 0, 64, 6, 0, 0}), "window page 0 of tile 0 is 6, expected 0 to 5");
  EXPECT_EQ(tile({3, 0, 1, 0, 0, 0}), "the kind of tile 0 is 3, expected 0 to 2");
  EXPECT_EQ(tile({0, 0, 64, 0, 1, 0}), "tile 0 takes 64 slots from 1 on, and a page has 64");
}

}  // namespace
}  // namespace oscar::kernels
