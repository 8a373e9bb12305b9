#include "text/unicode/unicode.h"

#include <gtest/gtest.h>

#include "text/unicode/unicode_tables.h"

namespace oscar {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

std::string replacements(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += kReplacement;
  return text;
}

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    EXPECT_EQ(find_invalid_utf8(text), std::string::npos);
    EXPECT_EQ(decode_code_point(text, 0).value, c);
    EXPECT_EQ(decode_code_point_before(text, text.size()).bytes, text.size());
  }
}

// The table of "substitution of maximal subparts" in the Unicode standard, section 3.9.
TEST(Utf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), replacements(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), replacements(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            replacements(5) + "A" + replacements(2) + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), replacements(4) + "A");
  EXPECT_EQ(find_invalid_utf8("ab\xC3\xA9\xC3"), 4U);
}

TEST(NormalForms, KnownAnswers) {                                               // UAX 15, figures 3 to 6
  EXPECT_EQ(normalize_form("A\xCC\x8A", NormalForm::kNfc), "\xC3\x85");         // A + ring
  EXPECT_EQ(normalize_form("\xE2\x84\xAB", NormalForm::kNfd), "A\xCC\x8A");     // Angstrom sign
  EXPECT_EQ(normalize_form("\xEF\xAC\x81", NormalForm::kNfc), "\xEF\xAC\x81");  // ligature fi
  EXPECT_EQ(normalize_form("\xEF\xAC\x81", NormalForm::kNfkc), "fi");
  EXPECT_EQ(normalize_form("q\xCC\x87\xCC\xA3", NormalForm::kNfc), "q\xCC\xA3\xCC\x87");                // dots in order
  EXPECT_EQ(normalize_form("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", NormalForm::kNfc), "\xED\x95\x9C");  // Hangul
}

TEST(UnicodeTables, AreSortedAndDisjoint) {
  const auto check = [](const auto& rows) {
    ASSERT_FALSE(rows.empty());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_LE(rows[i].first, rows[i].last);
      if (i > 0) {
        EXPECT_LT(rows[i - 1].last, rows[i].first);
      }
    }
  };
  for (int table = 0; table <= static_cast<int>(CodeTable::kStandIn); ++table) {
    check(code_ranges(static_cast<CodeTable>(table)));
  }
}

TEST(UnicodeTables, StandInsHaveTheLengthOfWhatTheyStandFor) {
  for (const CodeRange& row : code_ranges(CodeTable::kStandIn)) {
    std::string first, last, stand_in;
    append_utf8(first, row.first);
    append_utf8(last, row.last);
    append_utf8(stand_in, row.value);
    EXPECT_EQ(first.size(), stand_in.size());
    EXPECT_EQ(last.size(), stand_in.size());
  }
}

}  // namespace
}  // namespace oscar
