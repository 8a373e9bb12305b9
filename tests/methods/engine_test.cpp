#include "methods/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "registry/registry.h"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 400, kHeads = 2, kDim = 64;

ModelConfig model() {
  ModelConfig m;
  m.layers = 8;
  m.query_heads = 4;
  m.kv_heads = kHeads;
  m.head_dim = kDim;
  m.max_position = 4096;
  m.rope.theta = 10000.0;
  return m;
}

at::Tensor rows(std::uint64_t seed) {
  at::manual_seed(seed);
  at::Tensor x = at::randn({kTokens, kHeads, kDim});
  x.select(2, 5).mul_(8.0);      // an outlier channel
  x.narrow(0, 0, 3).mul_(0.05);  // weak first tokens
  return x;
}

class EveryMethod : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Table, EveryMethod, testing::ValuesIn([] {
                           std::vector<std::string> ids;
                           for (const MethodRow& row : method_registry()) {
                             if (row.description) ids.push_back(row.id);
                           }
                           return ids;
                         }()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

// With 8 bits in place of its own the method gives its input back: basis, order, scales and rotary embedding are
// undone.
TEST_P(EveryMethod, InvertsItsTransforms) {
  MethodSpec m = *find_method_spec(GetParam());
  for (SideCode* s : {&m.key, &m.value}) {
    if (s->code == CacheCode::kSymmetric4) s->code = CacheCode::kUniform;  // which may have more bits
    s->bits = 8;
    if (s->boosted_share > 0) s->boosted_bits = 8;
  }
  const MethodEngine engine(m, model());
  for (const Side side : {Side::kKey, Side::kValue}) {
    const at::Tensor x = rows(1), y = engine.reconstruct(side, x);
    const double error = ((x - y).norm() / x.norm()).item<double>();
    EXPECT_LT(error, 0.05) << (side == Side::kKey ? "keys" : "values");
    EXPECT_EQ(y.sizes(), x.sizes());
  }
}

TEST_P(EveryMethod, IsCausal) {
  // Tokens that have been read coded do not change when more tokens arrive.
  const MethodEngine engine(*find_method_spec(GetParam()), model());
  for (const Side side : {Side::kKey, Side::kValue}) {
    const at::Tensor x = rows(2), whole = engine.reconstruct(side, x);
    for (const std::int64_t n : {180, 256, 399}) {
      const std::int64_t begin = engine.side(side).windows.sink, end = engine.side(side).windows.quantized_end(n);
      if (end <= begin) continue;
      const at::Tensor part = engine.reconstruct(side, x.narrow(0, 0, n));
      const double difference =
          (part.narrow(0, begin, end - begin) - whole.narrow(0, begin, end - begin)).abs().max().item<double>();
      EXPECT_LT(difference, 1e-4) << n;
    }
  }
}

TEST_P(EveryMethod, CodesAreLossyAndDeterministic) {
  const MethodEngine engine(*find_method_spec(GetParam()), model());
  const at::Tensor x = rows(3);
  const at::Tensor y = engine.reconstruct(Side::kKey, x);
  EXPECT_TRUE(at::equal(y, engine.reconstruct(Side::kKey, x)));
  EXPECT_GT((x - y).abs().max().item<double>(), 1e-4);
}

TEST_P(EveryMethod, RefusesNotANumber) {
  const MethodEngine engine(*find_method_spec(GetParam()), model());
  at::Tensor x = rows(4);
  x[7][1][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(engine.reconstruct(Side::kValue, x), NumericalError);
}

TEST(Engine, RandomRotationIsOrthogonal) {
  const at::Tensor m = random_orthogonal(96, 4);
  EXPECT_LT((at::mm(m, m.t()) - at::eye(96, at::kDouble)).abs().max().item<double>(), 1e-13);
}

TEST(Engine, AllocatedBytesFollowTheBits) {
  const MethodEngine q4(*find_method_spec("q4_0"), model());
  EXPECT_EQ(q4.allocated_bytes(1000), static_cast<std::uint64_t>(8 * 2 * kHeads * kDim * 1000 * 4.5 / 8));
}

}  // namespace
}  // namespace oscar
