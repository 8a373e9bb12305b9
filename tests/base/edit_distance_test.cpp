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

}  // namespace
}  // namespace oscar
