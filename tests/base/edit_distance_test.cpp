#include "base/edit_distance.h"

#include <gtest/gtest.h>

namespace oscar {
namespace {

TEST(EditDistance, KnownAnswers) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("oscar", "oscar"), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);  // k to s, e to i, g added
  EXPECT_EQ(edit_distance("waterfil", "waterfill"), 1u);
}

TEST(EditDistance, TheNameThatWasMeant) {
  const std::vector<std::string> known = {"--allocate", "--bits", "--bias"};
  EXPECT_EQ(meant_name("--alocate", known), "--allocate");
  EXPECT_EQ(did_you_mean("--bit", known), "; did you mean '--bits'?");
  EXPECT_EQ(did_you_mean("--prompts", known), "");
  EXPECT_EQ(did_you_mean(std::string(1 << 20, 'x'), known), "");
}

}  // namespace
}  // namespace oscar
