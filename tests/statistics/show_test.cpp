#include "statistics/show.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "statistics/random_statistics.h"

namespace oscar {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Show, TextHoldsTheFacts) {
  const std::string text = show_text(random_statistics({}), false);
  EXPECT_THAT(text, HasSubstr("2 layers, 4 query heads, 2 KV heads, head_dim 8, hidden 32"));
  EXPECT_THAT(text, HasSubstr("tokens     50\n"));
  EXPECT_THAT(text, HasSubstr("row sample 16 tokens"));
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= 32 && c < 127); }));
  EXPECT_THAT(show_text(random_statistics({}), true), HasSubstr("█"));
}

TEST(Show, JsonHoldsEverySpectrum) {
  const Json json = show_json(random_statistics({}));
  ASSERT_EQ(json["layers"].size(), 2u);
  for (const char* key : {"q", "k", "v", "o", "energy"}) {
    const Json& spectrum = json["layers"][1][key];
    EXPECT_EQ(spectrum["eigenvalues"].size(), 8u);
    EXPECT_NEAR(spectrum["top8"].get<double>(), 1.0, 1e-9);  // all eight directions of d = 8
  }
  EXPECT_NEAR(json["layers"][0]["residual_energy"].get<double>(), 99.5 / 50, 1e-12);
}

TEST(Show, TracesArePerTokenSoThatFilesCompare) {
  // All keys have the same squared norm in expectation: twice the tokens must not double the trace.
  const Json few = show_json(random_statistics({.tokens = 400})), many = show_json(random_statistics({.tokens = 800}));
  const double a = few["layers"][0]["k"]["trace"].get<double>(), b = many["layers"][0]["k"]["trace"].get<double>();
  EXPECT_NEAR(a, 8 * 1.25, 1.0);
  EXPECT_NEAR(a / b, 1.0, 0.1);
}

TEST(Show, TextFromTheFileCannotMoveTheCursor) {
  Statistics s = random_statistics({});
  s.model_name = "evil\033[2J\nname";
  s.metadata["parts"][0]["prompts"]["files"] = {"\033]0;title\007.jsonl", 7};
  const std::string text = show_text(s, false);
  EXPECT_EQ(text.find('\033'), std::string::npos);
  EXPECT_EQ(text.find('\007'), std::string::npos);
  EXPECT_THAT(text, HasSubstr("evil\\x1b[2J\\x0aname"));
}

TEST(Show, LocaleDecidesOnUnicode) {
  const char* names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
  std::vector<std::pair<std::string, std::string>> saved;
  for (const char* name : names) {
    if (std::getenv(name) != nullptr) saved.emplace_back(name, std::getenv(name));
    ::unsetenv(name);
  }
  EXPECT_FALSE(locale_is_utf8());
  ::setenv("LANG", "de_DE.utf8", 1);
  EXPECT_TRUE(locale_is_utf8());
  ::setenv("LC_ALL", "C", 1);  // stronger than LANG
  EXPECT_FALSE(locale_is_utf8());
  for (const char* name : names) ::unsetenv(name);
  for (const auto& [name, value] : saved) ::setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace
}  // namespace oscar
