// Windows of keys and values beside the cache: as attention over whole sequences, in one piece, in some, token by
// token, and sequences of a batch do not meet.
#include "model/local_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 700, kHeads = 6, kKvHeads = 2, kDim = 10;  // more tokens than a block of queries

class LocalAttentionTest : public testing::TestWithParam<std::int64_t> {
 protected:
  LocalAttentionTest() {
    at::manual_seed(11);
    q = at::randn({kTokens, kHeads, kDim}), k = at::randn({kTokens, kKvHeads, kDim}), v = at::randn_like(k);
  }
  // Rows [start, start + count) as the next ones of sequence `id`.
  at::Tensor run(std::int64_t id, std::int64_t start, std::int64_t count, RecurrentStates* kept) const {
    const SequenceBatch batch{{id}, {count}, {start}};
    return local_attention(input(batch, start, count), 3, kept);
  }
  AttentionInput input(const SequenceBatch& batch, std::int64_t first, std::int64_t count) const {
    AttentionInput x;
    x.batch = &batch;
    x.q = q.narrow(0, first, count), x.k = k.narrow(0, first, count), x.v = v.narrow(0, first, count);
    x.scale = 0.7, x.sliding_window = GetParam();
    return x;
  }
  at::Tensor whole() const {  // what calibration takes for the truth
    const SequenceBatch batch{{0}, {kTokens}, {0}};
    FullAttention attention;
    return attention.attend(input(batch, 0, kTokens));
  }

  at::Tensor q, k, v;
};

TEST_P(LocalAttentionTest, IsAttentionWithAWindow) {
  EXPECT_TRUE(at::allclose(run(0, 0, kTokens, nullptr), whole(), 1e-5, 1e-6));
}

TEST_P(LocalAttentionTest, PiecesAreTheWhole) {
  const at::Tensor expected = whole();
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{1, 699}, {16, 17, 1, 1, 1, 664}, {600, 100}, std::vector<std::int64_t>(100, 7)}) {
    RecurrentStates states;
    std::int64_t start = 0;
    for (const std::int64_t count : cuts) {
      const at::Tensor part = run(5, start, count, &states);
      EXPECT_TRUE(at::allclose(part, expected.narrow(0, start, count), 1e-5, 1e-6)) << start << " " << count;
      start += count;
    }
    EXPECT_LT(states.before(3, 5, kTokens).keys.size(0), GetParam());  // and no more than the window is kept
  }
}

TEST_P(LocalAttentionTest, SequencesOfABatchDoNotMeet) {
  RecurrentStates states;
  run(1, 0, 40, &states);
  const SequenceBatch batch{{1, 2, 9}, {30, 0, 50}, {40, 0, 0}};
  const at::Tensor both = local_attention(input(batch, 40, 80), 3, &states);
  EXPECT_TRUE(at::allclose(both.narrow(0, 0, 30), run(0, 0, kTokens, nullptr).narrow(0, 40, 30), 1e-5, 1e-6));
  const SequenceBatch alone{{9}, {50}, {0}};
  EXPECT_TRUE(at::allclose(both.narrow(0, 30, 50), local_attention(input(alone, 70, 50), 3, nullptr), 1e-5, 1e-6));
}

TEST_P(LocalAttentionTest, RefusesGaps) {
  RecurrentStates states;
  EXPECT_THROW(run(0, 3, 5, nullptr), std::invalid_argument);
  EXPECT_THROW(run(0, 3, 5, &states), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Windows, LocalAttentionTest, testing::Values(1, 2, 17, 512, 5000));

}  // namespace
}  // namespace oscar
