#include "attention/cpu/fused_attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/vector_math.h"

namespace oscar {
namespace {

using vector_math::Floats;

constexpr std::int64_t kTile = 256;                // keys per tile
constexpr std::int64_t kScoreStride = kTile + 16;  // floats from row to row: a power of two would share cache sets
constexpr std::int64_t kRows = 12;                 // rows of a register tile; half as many without 512-bit registers
constexpr float kHidden = -std::numeric_limits<float>::infinity();
// A smaller weight changes no FP32 sum with the largest weight; denormal ones would slow the product with the values.
constexpr float kNegligibleLog = -69.0f;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// c [R, 16] (+)= a [R, n] b [n, 16].
template <int R>
OSCAR_VECTOR_INLINE void multiply_rows(const float* a, std::int64_t row, std::int64_t step, const float* b,
                                       std::int64_t n, float* c, std::int64_t c_row, bool add) {
  Floats sums[R];
  for (int r = 0; r < R; ++r) {
    sums[r] = Floats{};
    if (add) vector_math::load(sums[r], c + r * c_row);
  }
  for (std::int64_t i = 0; i < n; ++i, a += step, b += kStrip) {
    Floats strip;
    vector_math::load(strip, b);
    for (int r = 0; r < R; ++r) sums[r] += strip * a[r * row];
  }
  for (int r = 0; r < R; ++r) vector_math::store(c + r * c_row, sums[r]);
}

// Scores of `rows` (a multiple of 12) with one strip of keys; q: [rows / R, d, R].
OSCAR_FLOAT_CLONES void score_strip(const float* q, std::int64_t rows, std::int64_t d, const float* keys, float* scores,
                                    bool wide) {
  if (wide) {
    for (std::int64_t r = 0; r < rows; r += kRows) {
      multiply_rows<kRows>(q + r * d, 1, kRows, keys, d, scores + r * kScoreStride, kScoreStride, false);
    }
  } else {
    for (std::int64_t r = 0; r < rows; r += kRows / 2) {
      multiply_rows<kRows / 2>(q + r * d, 1, kRows / 2, keys, d, scores + r * kScoreStride, kScoreStride, false);
    }
  }
}

// out [rows, strips * 16] += weights [rows, n] values [strips][n, 16], `next` floats from strip to strip.
OSCAR_FLOAT_CLONES void add_values(const float* weights, std::int64_t rows, std::int64_t n, const float* values,
                                   std::int64_t strips, std::int64_t next, float* out, std::int64_t out_row,
                                   bool wide) {
  const std::int64_t step = wide ? kRows : kRows / 2;
  for (std::int64_t r = 0; r < rows; r += step) {
    const float* a = weights + r * kScoreStride;
    for (std::int64_t s = 0; s < strips; ++s) {
      float* c = out + r * out_row + s * kStrip;
      if (wide) {
        multiply_rows<kRows>(a, kScoreStride, 1, values + s * next, n, c, out_row, true);
      } else {
        multiply_rows<kRows / 2>(a, kScoreStride, 1, values + s * next, n, c, out_row, true);
      }
    }
  }
}

// Replaces scores [n], n a multiple of 16, by e^(score - largest), and raises `largest` to their maximum. Adds the sum
// of the new weights to `total`. Returns the factor for earlier sums.
OSCAR_FLOAT_CLONES float weigh(float* scores, std::int64_t n, float& largest, double& total) {
  Floats top = Floats{} + kHidden, x;
  for (std::int64_t i = 0; i < n; i += kStrip) {
    vector_math::load(x, scores + i);
    top = x > top ? x : top;
  }
  float highest = largest;
  for (int i = 0; i < vector_math::kLanes; ++i) highest = std::max(highest, top[i]);
  if (highest == kHidden) {  // no key has been visible so far
    std::fill_n(scores, n, 0.0f);
    return 1.0f;
  }
  Floats factor = Floats{} + (largest - highest), sum = {};
  vector_math::exp_in_place(factor);
  const float rescale = largest == kHidden ? 0.0f : largest == highest ? 1.0f : factor[0];
  for (std::int64_t i = 0; i < n; i += kStrip) {
    vector_math::load(x, scores + i);
    x -= highest;
    Floats weight = x;
    vector_math::exp_in_place(weight);
    weight = x < kNegligibleLog ? Floats{} : weight;
    sum += weight;
    vector_math::store(scores + i, weight);
  }
  largest = highest;
  total = total * static_cast<double>(rescale) + vector_math::sum(sum);
  return rescale;
}

// Packs the rows of a block, R = 12 or 6 of them side by side: [rows / R, d, R].
void pack_queries(const float* queries, std::int64_t stride, std::int64_t count, std::int64_t group, std::int64_t d,
                  std::int64_t step, float* packed) {
  for (std::int64_t row = 0; row < count * group; ++row) {
    const float* q = queries + row / group * stride + row % group * d;
    float* to = packed + row / step * step * d + row % step;
    for (std::int64_t i = 0; i < d; ++i) to[i * step] = q[i];
  }
}

class Block {
 public:
  Block(const FusedHead& head, const float* queries, std::int64_t stride, const SeenKeys* seen, std::int64_t count)
      : head_(head),
        seen_(seen),
        group_(head.gqa_group),
        rows_(count * group_),
        padded_((rows_ + kRows - 1) / kRows * kRows),
        width_(head.output_strips() * kStrip),
        wide_(has_wide_registers()),
        queries_(size(padded_ * head.key_d)),
        scores_(size(padded_ * kScoreStride)),
        sums_(size(padded_ * width_)),
        largest_(size(rows_), kHidden),
        total_(size(rows_)) {
    pack_queries(queries, stride, count, group_, head.key_d, wide_ ? kRows : kRows / 2, queries_.data());
    begin_ = seen[0].first, end_ = seen[count - 1].position + 1;
    coded_by_all_ = coded_by_some_ = seen[0].coded_end;
    for (std::int64_t i = 0; i < count; ++i) {
      begin_ = std::min(begin_, seen[i].first);
      coded_by_all_ = std::min(coded_by_all_, seen[i].coded_end);
      coded_by_some_ = std::max(coded_by_some_, seen[i].coded_end);
    }
  }

  void run(float* out) {
    for (std::int64_t t = begin_ / kStrip * kStrip; t < end_; t += kTile) tile(t, std::min(t + kTile, end_));
    for (std::int64_t row = 0; row < rows_; ++row) {
      const float scale = static_cast<float>(1.0 / total_[size(row)]);
      for (std::int64_t i = 0; i < width_; ++i) out[row * width_ + i] = sums_[size(row * width_ + i)] * scale;
    }
  }

 private:
  static bool has_wide_registers() {
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") != 0;
#else
    return false;
#endif
  }

  // Processes keys [from, to), with `from` at the start of a strip.
  void tile(std::int64_t from, std::int64_t to) {
    for (std::int64_t key = from; key < to; key += kStrip) score(key, scores_.data() + key - from);
    const std::int64_t columns = strips_of(to - from) * kStrip;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const SeenKeys& seen = seen_[row / group_];
      float* scores = scores_.data() + row * kScoreStride;
      std::fill(scores, scores + std::clamp<std::int64_t>(seen.first - from, 0, columns), kHidden);
      std::fill(scores + std::clamp<std::int64_t>(seen.position + 1 - from, 0, columns), scores + columns, kHidden);
      const float rescale = weigh(scores, columns, largest_[size(row)], total_[size(row)]);
      if (rescale == 1.0f) continue;
      float* sums = sums_.data() + row * width_;
      for (std::int64_t i = 0; i < width_; ++i) sums[i] *= rescale;
    }
    if (head_.coded_values == nullptr) return add(from, from, to, false);
    const auto within = [&](std::int64_t x) { return std::clamp(x, from, to); };
    const std::int64_t sink = within(head_.sink), all = within(coded_by_all_), some = within(coded_by_some_);
    add(from, from, sink, false);
    add(from, sink, all, true);
    add_mixed(from, all, some);
    add(from, some, to, false);
  }

  // Scores the strip of keys from `key` on, coded or plain for each query.
  void score(std::int64_t key, float* scores) {
    const std::int64_t d = head_.key_d, last = key + kStrip;
    const auto with = [&](const float* keys, float* to) {
      score_strip(queries_.data(), padded_, d, keys + key * d, to, wide_);
    };
    const bool coded = head_.coded_keys != nullptr && last > head_.sink && key < coded_by_some_;
    if (coded && key >= head_.sink && last <= coded_by_all_) return with(head_.coded_keys, scores);
    with(head_.keys, scores);
    if (!coded) return;
    other_.resize(size(padded_ * kScoreStride));
    with(head_.coded_keys, other_.data());
    const std::int64_t begin = std::max<std::int64_t>(head_.sink - key, 0);
    for (std::int64_t row = 0; row < rows_; ++row) {
      const std::int64_t end = std::clamp<std::int64_t>(seen_[row / group_].coded_end - key, begin, kStrip);
      const float* from = other_.data() + row * kScoreStride;
      std::copy(from + begin, from + end, scores + row * kScoreStride + begin);
    }
  }

  void add(std::int64_t tile, std::int64_t from, std::int64_t to, bool coded) {
    add_weighted(scores_.data() + from - tile, from, to, coded);
  }

  void add_weighted(const float* weights, std::int64_t from, std::int64_t to, bool coded) {
    if (from >= to) return;
    const std::int64_t strips = coded ? head_.coded_value_strips : head_.value_strips;
    const std::int64_t behind = coded && head_.separate ? head_.value_strips * kStrip : 0;
    add_values(weights, padded_, to - from, (coded ? head_.coded_values : head_.values) + from * kStrip, strips,
               head_.tokens * kStrip, sums_.data() + behind, width_, wide_);
  }

  // Adds keys [from, to) that only some of the queries read coded: each weight belongs to one of the two versions.
  void add_mixed(std::int64_t tile, std::int64_t from, std::int64_t to) {
    if (from >= to) return;
    other_.assign(size(padded_ * kScoreStride), 0.0f);
    for (std::int64_t row = 0; row < rows_; ++row) {
      float *weights = scores_.data() + row * kScoreStride + from - tile, *coded = other_.data() + row * kScoreStride;
      const std::int64_t count = std::clamp<std::int64_t>(seen_[row / group_].coded_end - from, 0, to - from);
      std::copy_n(weights, count, coded);
      std::fill_n(weights, count, 0.0f);
    }
    add(tile, from, to, false);
    add_weighted(other_.data(), from, to, true);
  }

  const FusedHead& head_;
  const SeenKeys* seen_;
  const std::int64_t group_, rows_, padded_, width_;
  const bool wide_;
  std::int64_t begin_ = 0, end_ = 0;                    // keys that any query sees
  std::int64_t coded_by_all_ = 0, coded_by_some_ = 0;   // end of keys that all queries read coded, and that some do
  std::vector<float> queries_, scores_, other_, sums_;  // packed; [rows, tile] x 2; [rows, width]
  std::vector<float> largest_;                          // [rows]
  std::vector<double> total_;                           // [rows]
};

}  // namespace

void pack_keys(const float* rows, std::int64_t tokens, std::int64_t d, float* packed) {
  for (std::int64_t t = 0; t < tokens; t += kStrip, packed += d * kStrip) {
    const std::int64_t count = std::min(kStrip, tokens - t);
    if (count < kStrip) std::fill_n(packed, d * kStrip, 0.0f);
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t i = 0; i < d; ++i) packed[i * kStrip + j] = rows[(t + j) * d + i];
    }
  }
}

void pack_values(const float* rows, std::int64_t tokens, std::int64_t d, float* packed) {
  for (std::int64_t c = 0; c < d; c += kStrip) {
    const std::int64_t count = std::min(kStrip, d - c);
    for (std::int64_t t = 0; t < tokens; ++t, packed += kStrip) {
      std::copy_n(rows + t * d + c, count, packed);
      std::fill(packed + count, packed + kStrip, 0.0f);
    }
  }
}

void fused_attention(const FusedHead& head, const float* queries, std::int64_t stride, const SeenKeys* seen,
                     std::int64_t count, float* out) {
  if (count > 0) Block(head, queries, stride, seen, count).run(out);
}

std::int64_t fused_block(std::int64_t gqa_group) { return std::max<std::int64_t>(96 / gqa_group, 1); }

}  // namespace oscar
