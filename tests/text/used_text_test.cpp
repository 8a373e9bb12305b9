// The record of used text: what later runs compare with.
#include "text/text_hashes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace oscar {
namespace {

TEST(UsedText, HoldsEachDocumentAndTheLeastPassages) {
  std::vector<std::int32_t> first(100), second(3000);
  std::iota(first.begin(), first.end(), 7);
  std::iota(second.begin(), second.end(), 20000);
  const Json record = used_text_record({first, second});
  EXPECT_EQ(record["documents"], (Json{document_hash(first), document_hash(second)}));
  ASSERT_EQ(record["passages"].size(), kPassageHashes);  // of 69 + 2969
  std::vector<std::string> passages = record["passages"];
  EXPECT_TRUE(std::is_sorted(passages.begin(), passages.end()));
  const std::vector<std::uint64_t> all = passage_hashes({first, second}, 0);
  EXPECT_EQ(std::stoull(passages.front(), nullptr, 16), all.front());
  EXPECT_EQ(std::stoull(passages.back(), nullptr, 16), all[kPassageHashes - 1]);
  for (const std::string& p : passages) EXPECT_EQ(p.size(), 16u);
}

TEST(UsedText, NothingOfNothing) {
  EXPECT_EQ(used_text_record({}), (Json{{"documents", Json::array()}, {"passages", Json::array()}}));
}

}  // namespace
}  // namespace oscar
