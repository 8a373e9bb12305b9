#include "base/foreign_text.h"
#include "base/errors.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/random.h"
#include "base/utf8.h"

namespace oscar {
namespace {

TEST(Utf8, WellFormedAndNot) {
  for (const char* good : {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xef\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "a\xe2\x82"}) {
    EXPECT_FALSE(is_utf8(bad)) << bad;
  }
}

TEST(Utf8, StepsDecode) {
  EXPECT_EQ(utf8_step("\xe2\x82\xac", 0).value, 0x20ACu);
  EXPECT_EQ(utf8_step("x\xf0\x9f\x98\x80", 1).value, 0x1F600u);
  EXPECT_EQ(utf8_step("\xe2\x82", 0).bytes, 2u);  // the maximal ill-formed subpart
  EXPECT_FALSE(utf8_step("\xe2\x82", 0).valid);
}

TEST(EscapeText, KnownAnswers) {
  EXPECT_EQ(escape_text(""), "");
  EXPECT_EQ(escape_text("plain 'text' <b> \\ ~"), "plain 'text' <b> \\ ~");
  EXPECT_EQ(escape_text("\xe6\xa8\xa1\xe5\x9e\x8b caf\xc3\xa9 \xc2\xb1 \xf0\x9f\x98\x80"),
            "\xe6\xa8\xa1\xe5\x9e\x8b caf\xc3\xa9 \xc2\xb1 \xf0\x9f\x98\x80");
  EXPECT_EQ(escape_text(std::string_view("\0\x1b[31m\x7f\r\n\t", 10)), "\\x00\\x1b[31m\\x7f\\x0d\\x0a\\x09");
  EXPECT_EQ(escape_text("a\nb\tc\rd\x1b", Lines::kMany), "a\nb\tc\\x0dd\\x1b");
  EXPECT_EQ(escape_text("\xc2\x9b\xc2\x85"), "\\u009b\\u0085");                         // C1: CSI, next line
  EXPECT_EQ(escape_text("\xe2\x80\xae\xe2\x81\xa6\xd8\x9c"), "\\u202e\\u2066\\u061c");  // direction
  EXPECT_EQ(escape_text("\xe2\x80\xa8\xe2\x80\xa9\xef\xbb\xbf"), "\\u2028\\u2029\\ufeff");
  EXPECT_EQ(escape_text("\xf3\xa0\x81\x81"), "\\U000e0041");           // a tag character
  EXPECT_EQ(escape_text("\xff\x9b\xe2\x82"), "\\xff\\x9b\\xe2\\x82");  // no UTF-8
}

TEST(EscapeText, WhatItWritesIsSafeAndStays) {
  for (std::uint64_t n = 0; n < 3000; ++n) {
    std::string text;
    for (std::uint64_t i = 0, bits = mix64(n); i < bits % 24; ++i) text += static_cast<char>(mix64(n * 64 + i) >> 7);
    for (const Lines lines : {Lines::kOne, Lines::kMany}) {
      const std::string out = escape_text(text, lines);
      ASSERT_EQ(escape_text(out, lines), out);
      for (std::size_t at = 0; at < out.size();) {
        const Utf8Step step = utf8_step(out, at);
        const bool kept = lines == Lines::kMany && (step.value == '\n' || step.value == '\t');
        ASSERT_TRUE(step.valid && (kept || !is_unsafe(step.value)));
        at += step.bytes;
      }
    }
  }
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 5), "abcde...");
  EXPECT_EQ(printable("abc\xe2\x82\xac", 5), "abc...");
  EXPECT_EQ(printable("\x1b\x1b\x1b", 2), "\\x1b\\x1b...");
  EXPECT_EQ(quote_name("a\nb"), "'a\\x0ab'");
}

TEST(ForeignText, ErrorsEscapeWhatTheyQuote) {
  EXPECT_STREQ(InputError("tensor 'a\x1b[31m\xff' is missing").what(), "tensor 'a\\x1b[31m\\xff' is missing");
  EXPECT_STREQ(UsageError(quote_name("a\x1b")).what(), "'a\\x1b'");  // once, not twice
}

}  // namespace
}  // namespace oscar
