#include "base/markup.h"

#include <gtest/gtest.h>

namespace oscar {
namespace {

TEST(Markdown, TextIsShownAsItIs) {
  EXPECT_EQ(markdown_text("Qwen/Qwen3-8B k_rotation.pt 1,234 (97 %)"), "Qwen/Qwen3-8B k_rotation.pt 1,234 (97 %)");
  EXPECT_EQ(markdown_text("# title"), "\\# title");
  EXPECT_EQ(markdown_text("- item"), "\\- item");
  EXPECT_EQ(markdown_text("a\n# b"), "a\\\\x0a# b");
  EXPECT_EQ(markdown_text("<script>&</script>"), "&lt;script&gt;&amp;&lt;/script&gt;");
  EXPECT_EQ(markdown_text("![x](y) | **b** `c` ~~d~~"), "\\!\\[x\\](y) \\| \\*\\*b\\*\\* \\`c\\` \\~\\~d\\~\\~");
  EXPECT_EQ(markdown_text("_emphasis_ a_b"), "\\_emphasis\\_ a_b");
  EXPECT_EQ(markdown_text("\x1b[2J\xff"), "\\\\x1b\\[2J\\\\xff");
}

TEST(Markdown, CodeCannotEndEarly) {
  EXPECT_EQ(markdown_code("oscar-fit s.safetensors"), "`oscar-fit s.safetensors`");
  EXPECT_EQ(markdown_code("a`b``c"), "```a`b``c```");
  EXPECT_EQ(markdown_code("`x`"), "`` `x` ``");
  EXPECT_EQ(markdown_code("a|b\n"), "`a\\|b\\x0a`");
  EXPECT_EQ(markdown_code(""), "`  `");
}

}  // namespace
}  // namespace oscar
