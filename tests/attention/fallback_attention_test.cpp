// The general attention kernel on random caches against the reference in double precision. Needs a GPU; skipped without
// one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attention/cuda/attention_launch.h"
#include "attention/decode_attention_reference.h"
#include "attention/random_cache.h"
#include "model/attention.h"
#include "support/gpu.h"

namespace oscar {
namespace {

constexpr double kLimit = 1e-4;

double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, power = 1e-30;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double a = static_cast<double>(x[i]), b = static_cast<double>(y[i]);
    error += (a - b) * (a - b), power += b * b;
  }
  return std::sqrt(error / power);
}

// A cache of the CPU in device memory, as it is.
class OnDevice {
 public:
  explicit OnDevice(const RandomCache& cache) : cache_(cache), q_(&cache.params) {
    std::size_t ids = 0;
    for (const SequenceView& view : cache.views) {
      kernels::FallbackSequence s{};
      for (const Side side : {Side::kKey, Side::kValue}) {
        kernels::FallbackSequenceSide& to = side == Side::kKey ? s.key : s.value;
        to.sink = tier(view.sink, side), to.recent = tier(view.recent, side);
        ids = static_cast<std::size_t>((view.body_tokens + kPageTokens - 1) / kPageTokens);
        to.page_table = copy(view.page_table, ids);
        to.sink_tokens = view.sink.tokens, to.body_tokens = view.body_tokens;
      }
      s.length = view.sink.tokens + view.body_tokens + view.recent.tokens;
      sequences_.push_back(s);
    }
  }

  // Runs the kernel and fills output and sums, which start as NaN.
  void run(const std::vector<float>* turned, const std::vector<float>* rope_phases, std::vector<float>* output,
           std::vector<float>* sums) {
    const TieredDecodeParams& from = *q_;
    const auto heads = static_cast<std::size_t>(from.batch * from.query_heads);
    const at::Device gpu(at::kCUDA, 0);
    const at::TensorOptions options = at::TensorOptions(at::kFloat).device(gpu);
    at::Tensor out = at::full({static_cast<std::int64_t>(cache_.query.size())}, NAN, options);
    at::Tensor sum = at::full({static_cast<std::int64_t>(heads)}, NAN, options);
    kernels::FallbackAttentionParams p{};
    p.query = copy(cache_.query.data(), cache_.query.size());
    if (turned != nullptr) p.position_query = copy(turned->data(), turned->size());
    if (rope_phases != nullptr) p.rope_phases = copy(rope_phases->data(), rope_phases->size());
    if (from.logit_shift != nullptr) p.logit_shift = copy(from.logit_shift, heads);
    if (from.sink_logits != nullptr) p.sink_logits = copy(from.sink_logits, cache_.sinks.size());
    p.output = out.mutable_data_ptr<float>(), p.weight_sum = sum.mutable_data_ptr<float>();
    const std::uint8_t* pages = copy(cache_.pool.data(), cache_.pool.size());
    p.key = general_side(cache_.pages(Side::kKey), Side::kKey, pages,
                         copy(cache_.key_sigma.data(), cache_.key_sigma.size()));
    p.value = general_side(cache_.pages(Side::kValue), Side::kValue, pages,
                           copy(cache_.value_sigma.data(), cache_.value_sigma.size()));
    AttentionInput input;  // sizes alone
    input.q = at::empty({from.batch, from.query_heads, from.head_dim});
    input.k = at::empty({from.batch, from.kv_heads, from.head_dim});
    input.scale = static_cast<double>(from.softmax_scale), input.soft_cap = static_cast<double>(from.soft_cap);
    input.sliding_window = from.sliding_window;
    FallbackLauncher(gpu).launch(p, input, sequences_);
    for (const auto& [to, x] : {std::pair{output, out}, {sums, sum}}) {
      const at::Tensor host = x.to(at::kCPU);
      to->assign(host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel());
    }
  }

 private:
  template <class T>
  const T* copy(const T* data, std::size_t count) {
    const auto bytes = static_cast<std::int64_t>(count * sizeof(T));
    at::Tensor host = at::empty({bytes}, at::kByte);
    if (bytes > 0) std::memcpy(host.mutable_data_ptr(), data, static_cast<std::size_t>(bytes));
    held_.push_back(host.to(at::Device(at::kCUDA, 0)));
    return reinterpret_cast<const T*>(held_.back().const_data_ptr());
  }
  kernels::FallbackTier tier(const WindowTier& from, Side side) {
    const std::uint16_t* rows = side == Side::kKey ? from.key : from.value;
    const auto count = static_cast<std::size_t>(from.capacity * q_->kv_heads * q_->head_dim);
    return {copy(rows, count), from.first, from.capacity};
  }

  const RandomCache& cache_;
  const TieredDecodeParams* q_;
  std::vector<at::Tensor> held_;
  std::vector<kernels::FallbackSequence> sequences_;
};

void check(const CacheShape& shape, std::uint64_t seed, bool positions = false) {
  SCOPED_TRACE("d " + std::to_string(shape.head_dim) + ", group " + std::to_string(shape.group) + ", seed " +
               std::to_string(seed));
  RandomCache cache(shape, seed);
  OnDevice device(cache);
  std::vector<float> output, sums, turned, rope_phases;
  if (positions) {
    const auto most = static_cast<std::size_t>(shape.sink + shape.body + shape.recent + 1);
    for (std::size_t i = 0; i < cache.query.size(); ++i) turned.push_back(gaussian(seed + 1000, i));
    for (std::size_t i = 0; i < most * static_cast<std::size_t>(shape.head_dim); ++i) {
      rope_phases.push_back(gaussian(seed + 2000, i));
    }
    const PositionLogits logits{turned.data(), rope_phases.data()};
    decode_attention_cpu(cache.params, cache.pages(Side::kKey), cache.pages(Side::kValue), &logits);
    device.run(&turned, &rope_phases, &output, &sums);
  } else {
    decode_attention_reference(cache.params);
    device.run(nullptr, nullptr, &output, &sums);
  }
  EXPECT_LT(relative_error(output, cache.output), kLimit);
  EXPECT_LT(relative_error(sums, cache.weight_sum), kLimit);
}

constexpr std::array<std::uint8_t, 4> kWidths[] = {
    {4, 2, 1, 1}, {4, 4, 4, 4}, {2, 1, 0, 0}, {0, 4, 0, 2}, {0, 0, 0, 0}};

TEST(FallbackAttention, EveryHeadSizeAndGroup) {
  OSCAR_NEEDS_GPU();
  std::uint64_t seed = 0;
  for (const int d : {32, 48, 64, 80, 96, 128, 256, 320, 512}) {
    for (const int group : {1, 2, 5, 7, 8, 9, 16, 17, 20}) {
      CacheShape shape{.batch = 2, .kv_heads = 3, .group = group, .head_dim = d, .body = 300};
      shape.key = uniform_code(d, d % 32 == 0 ? 32 : d / 2, ParamType::kBFloat16);
      shape.value = uniform_code(d, group % 2 == 0 || d % 64 != 0 ? d : 64);
      if (group == 7) std::swap(shape.key, shape.value);
      check(shape, ++seed, group == 5);
    }
  }
}

TEST(FallbackAttention, BlocksOfAnyWidths) {
  OSCAR_NEEDS_GPU();
  std::uint64_t seed = 100;
  for (const int d : {32, 64, 96, 128, 256}) {
    for (std::size_t i = 0; i < std::size(kWidths); ++i) {
      CacheShape shape{.batch = 3, .kv_heads = 2, .group = 3, .head_dim = d, .body = 200};
      shape.key = band_code(d, kWidths[i]);
      shape.value = i % 2 == 0 ? band_code(d, kWidths[(i + 1) % std::size(kWidths)]) : uniform_code(d, d / 2);
      check(shape, ++seed);
      std::swap(shape.key, shape.value);
      check(shape, ++seed);
    }
  }
}

TEST(FallbackAttention, SinksCapsWindowsShiftsAndPositions) {
  OSCAR_NEEDS_GPU();
  std::uint64_t seed = 200;
  for (const float cap : {0.0f, 3.0f}) {
    for (const int window : {0, 1, 7, 90, 200}) {
      for (const bool sinks : {false, true}) {
        for (const bool positions : {false, true}) {
          CacheShape shape{.batch = 4, .kv_heads = 1, .group = 4, .head_dim = 64, .sink = 6, .body = 400, .recent = 40};
          shape.key = shape.value = uniform_code(64);
          shape.soft_cap = cap, shape.sliding_window = window, shape.sink_logits = sinks, shape.shift = true;
          check(shape, ++seed, positions);
        }
      }
    }
  }
}

TEST(FallbackAttention, EmptyTiersAndLongContexts) {
  OSCAR_NEEDS_GPU();
  std::uint64_t seed = 300;
  for (const auto& [sink, body, recent] :
       {std::tuple{0, 0, 1}, {0, 65, 0}, {3, 0, 0}, {0, 64, 5}, {4, 128, 0}, {4, 0, 9}, {0, 1, 1}, {64, 4000, 256}}) {
    CacheShape shape{.batch = 2, .kv_heads = 2, .group = 2, .head_dim = 128, .sink = sink, .body = body};
    shape.recent = recent, shape.ragged = false;
    shape.key = shape.value = uniform_code(128);
    check(shape, ++seed);
  }
}

TEST(FallbackAttention, RefusesShapesThatAreNotBuilt) {
  kernels::FallbackAttentionParams p{};
  p.batch = 1, p.query_heads = 4, p.kv_heads = 2, p.head_dim = 520, p.max_tokens = 10;
  const PageLayout page = page_layout(uniform_code(520), uniform_code(520));
  const std::vector<RowCodec> codecs(2, RowCodec{.code = uniform_code(520)});
  p.key = general_side(RowPages(page, Side::kKey, codecs), Side::kKey, nullptr, nullptr);
  p.value = general_side(RowPages(page, Side::kValue, codecs), Side::kValue, nullptr, nullptr);
  EXPECT_EQ(kernels::fallback_attention(p, nullptr), cudaErrorInvalidValue);
  p.head_dim = 128;  // the pages are of another size
  EXPECT_EQ(kernels::fallback_attention(p, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace oscar
