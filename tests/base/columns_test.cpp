#include "base/columns.h"

#include <gmock/gmock.h>

namespace oscar {
namespace {

using testing::HasSubstr;

TEST(Columns, WrapsAtSpacesAndIndents) {
  EXPECT_EQ(wrapped("short"), "short\n");
  EXPECT_EQ(wrapped(""), "\n");
  EXPECT_EQ(wrapped("  two  spaces stay"), "  two  spaces stay\n");
  const std::string a(60, 'a'), b(39, 'b'), c(40, 'c'), path(120, 'p');
  EXPECT_EQ(wrapped(a + " " + b), a + " " + b + "\n");  // 100 columns
  EXPECT_EQ(wrapped(a + " " + c, 2), a + "\n  " + c + "\n");
  EXPECT_EQ(wrapped("in " + path + " it", 4), "in\n    " + path + "\n    it\n");
}

TEST(Columns, WhatIsWrappedIsOneLine) {
  EXPECT_EQ(wrapped("a name\nof\ttwo\x1b[2J lines\xff"), "a name\\x0aof\\x09two\\x1b[2J lines\\xff\n");
}

TEST(Columns, CountsCharactersNotBytes) {
  EXPECT_EQ(display_width("\xc3\xbc\xe6\x97\xa5"
                          "a"),
            3u);
  EXPECT_EQ(shortened("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(shortened("abcdefghijk", 10), "abc...hijk");
  EXPECT_EQ(shortened("\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc", 8),
            "\xc3\xbc\xc3\xbc...\xc3\xbc\xc3\xbc\xc3\xbc");
  EXPECT_EQ(shortened(std::string(20, '\xff'), 8).size(), 8u);  // not UTF-8: no fault
}

TEST(Columns, TablesAreAligned) {
  EXPECT_EQ(table_text({{"name", "n"},
                        {"a", "1000"},
                        {"\xc3\xbc"
                         "b",
                         ""}},
                       1),
            "name     n\na     1000\n\xc3\xbc"
            "b\n");
}

TEST(Columns, WideTablesContinueBelowWithTheirNames) {
  std::vector<TableRow> rows(3, TableRow{"row"});
  for (int c = 0; c < 12; ++c) {
    for (std::size_t r = 0; r < 3; ++r) rows[r].push_back("column" + std::to_string(10 * c + static_cast<int>(r)));
  }
  const std::string text = table_in_parts(rows, 1);
  std::size_t names = 0;
  for (std::size_t from = 0; from < text.size(); from = text.find('\n', from) + 1) {
    EXPECT_LE(text.find('\n', from) - from, kColumns);
    names += text.compare(from, 3, "row") == 0 ? 1 : 0;
  }
  EXPECT_EQ(names, 6u);  // two parts
  for (int c = 0; c < 12; ++c) EXPECT_THAT(text, HasSubstr("column" + std::to_string(10 * c + 2)));
  EXPECT_EQ(table_in_parts({{"a", std::string(200, 'x')}}, 1), "a  " + std::string(200, 'x') + "\n");  // one too wide
}

}  // namespace
}  // namespace oscar
