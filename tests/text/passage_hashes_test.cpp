#include "text/text_hashes.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace oscar {
namespace {

std::vector<std::int32_t> ids(std::uint64_t seed, std::size_t count) {
  std::vector<std::int32_t> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(random_bits(seed, 0, i) % 8000);
  return out;
}

TEST(PassageHashes, CountsEveryWindowOnce) {
  EXPECT_TRUE(passage_hashes({ids(1, 31)}, 0).empty());
  EXPECT_EQ(passage_hashes({ids(1, 32)}, 0).size(), 1u);
  EXPECT_EQ(passage_hashes({ids(1, 132), ids(1, 132)}, 0).size(), 101u);
  EXPECT_EQ(passage_hashes({std::vector<std::int32_t>(500, 7)}, 0).size(), 1u);
  const auto all = passage_hashes({ids(2, 5000)}, 0), least = passage_hashes({ids(2, 5000)}, 100);
  EXPECT_EQ(least, std::vector<std::uint64_t>(all.begin(), all.begin() + 100));
}

// A passage inside another document is found at whatever place it stands; unrelated text shares nothing.
TEST(PassageHashes, FindsPassagesInOtherDocuments) {
  const auto record = passage_hashes({ids(3, 20000), ids(4, 20000)}, kPassageHashes);
  ASSERT_EQ(record.size(), kPassageHashes);
  std::vector<std::int32_t> text = ids(5, 3000);
  EXPECT_EQ(shared_passages(record, text).shared, 0u);
  EXPECT_GT(shared_passages(record, text).compared, 40u);  // about 1024 of 40000
  const auto seen = ids(4, 20000);
  text.insert(text.begin() + 1234, seen.begin() + 777, seen.begin() + 777 + 400);
  EXPECT_GE(shared_passages(record, text).shared, 3u);
}

TEST(PassageHashes, ShortRecordsCompareEverything) {
  const auto record = passage_hashes({ids(6, 200)}, kPassageHashes);
  const SharedPassages same = shared_passages(record, ids(6, 200));
  EXPECT_EQ(same.compared, 169u);
  EXPECT_EQ(same.shared, 169u);
  EXPECT_EQ(shared_passages({}, ids(6, 200)).compared, 0u);
}

}  // namespace
}  // namespace oscar
