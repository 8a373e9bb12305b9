#include "text/text_hashes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "base/errors.h"
#include "base/random.h"

namespace oscar {
namespace {

std::vector<std::int32_t> ids(std::uint64_t seed, std::size_t count) {
  std::vector<std::int32_t> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(random_bits(seed, 0, i) % 8000);
  return out;
}

Json part_of(const std::vector<std::vector<std::int32_t>>& documents) {
  Json hashes = Json::array(), passages = Json::array();
  for (const auto& d : documents) hashes.push_back(document_hash(d));
  for (const std::uint64_t hash : passage_hashes(documents, kPassageHashes)) {
    char text[24];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
    passages.push_back(text);
  }
  return {{"prompts", {{"documents", hashes}, {"passages", passages}}}};
}

TEST(SeenText, FindsDocumentsAndPassages) {
  const Json parts = {part_of({ids(1, 500)}), part_of({ids(2, 500), ids(3, 500)})};
  const SeenText whole = find_seen_text(parts, ids(3, 500), ids(3, 500));
  EXPECT_TRUE(whole.seen());
  EXPECT_EQ(whole.document, document_hash(ids(3, 500)));
  std::vector<std::int32_t> text = ids(9, 2000);
  EXPECT_FALSE(find_seen_text(parts, text, text).seen());
  const auto known = ids(2, 500);
  text.insert(text.begin() + 700, known.begin() + 100, known.begin() + 300);
  const SeenText some = find_seen_text(parts, text, text);
  EXPECT_TRUE(some.seen());
  EXPECT_EQ(some.document, "");
  EXPECT_THAT(some.reason(), testing::HasSubstr("shares passages"));
  EXPECT_EQ(some.shared, 169u);  // 200 tokens hold 169 passages of 32
}

// The head of a long text is scored: passages of the prompts in it count against the head, and others not at all.
TEST(SeenText, ComparesWhatIsScored) {
  // Json::array, as GCC and Clang read {one} differently: a list of one, and a copy.
  const Json parts = Json::array({part_of({ids(2, 500)})});
  const auto known = ids(2, 500);
  std::vector<std::int32_t> head = ids(9, 1000), text;
  std::copy_n(known.begin() + 100, 150, head.begin() + 500);  // 119 passages
  text = head;
  const auto rest = ids(10, 30000);
  text.insert(text.end(), rest.begin(), rest.end());
  EXPECT_FALSE(find_seen_text(parts, text, text).seen()) << "four thousandths of the whole text";
  EXPECT_TRUE(find_seen_text(parts, text, head).seen());
  EXPECT_FALSE(find_seen_text(parts, text, rest).seen());
  EXPECT_EQ(find_seen_text(parts, text, rest).shared, 0u);
}

TEST(SeenText, RecordsWithoutHashesSayNothing) {
  for (const char* text : {"null", "[]", "[{}]", "[3]", "[{\"prompts\": {\"sha256\": \"x\"}}]"}) {
    EXPECT_FALSE(find_seen_text(parse_json(text, "parts"), ids(1, 100), ids(1, 100)).seen()) << text;
  }
  EXPECT_THROW(
      find_seen_text(parse_json("[{\"prompts\": {\"passages\": [\"zz\"]}}]", "parts"), ids(1, 100), ids(1, 100)),
      InputError);
}

}  // namespace
}  // namespace oscar
