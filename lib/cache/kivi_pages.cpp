#include "cache/kivi_pages.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cache/row_loops.h"
#include "codec/codec.h"
#include "codec/row_math.h"
#include "layout/float16.h"
#include "methods/group_codes.h"
#include "methods/hadamard_rows.h"

namespace oscar {
namespace {

constexpr int kTokens = kKiviPageTokens;

// out[i] += weight * field `f` of bytes[i].
OSCAR_VECTOR_CLONES void add_field(const std::uint8_t* bytes, int count, int shift, int mask, float weight,
                                   float* out) {
  for (int i = 0; i < count; ++i) out[i] += weight * static_cast<float>((bytes[i] >> shift) & mask);
}

// out[i] = field * scale + offset.
OSCAR_VECTOR_CLONES void expand_field(const std::uint8_t* bytes, int count, int shift, int mask, float scale,
                                      float offset, float* out) {
  for (int i = 0; i < count; ++i) out[i] = static_cast<float>((bytes[i] >> shift) & mask) * scale + offset;
}

// Sets a field of bytes[i] to codes[i].
OSCAR_VECTOR_CLONES void set_field(const std::uint8_t* codes, int count, int shift, int mask, std::uint8_t* bytes) {
  for (int i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>((bytes[i] & ~(mask << shift)) | codes[i] << shift);
  }
}

// lines[c][t] = rows[t][c] of `count` rows of d floats, `width` apart, a few columns at a time. Rows of all heads are a
// power of two apart, so a full column would not fit into a CPU cache.
void transpose(const float* rows, int count, std::int64_t width, int d, float* lines) {
  constexpr int kColumns = 16;  // 64 bytes
  for (int first = 0; first < d; first += kColumns) {
    const int end = std::min(first + kColumns, d);
    for (int t = 0; t < count; ++t) {
      for (int c = first; c < end; ++c) lines[c * count + t] = rows[t * width + c];
    }
  }
}

group_codes::GroupParams encode(const SideCode& side, const float* x, int n, std::uint8_t* codes) {
  return side.code == CacheCode::kIntegerZero
             ? group_codes::encode_integer_zero(x, n, side.bits, static_cast<float>(side.clip), codes)
             : group_codes::encode_uniform(x, n, side.bits, codes);
}

}  // namespace

KiviPages::KiviPages(const SideCode& side, int kv_heads, int head_dim)
    : side_(side),
      channel_axis_(side.axis == CacheAxis::kChannel),
      bits_(side.bits),
      kv_heads_(kv_heads),
      d_(head_dim),
      line_(channel_axis_ ? kTokens : head_dim),
      group_(side.group == 0 ? line_ : std::min(side.group, line_)),
      lines_(channel_axis_ ? head_dim : kTokens),
      order_(side.basis == CacheBasis::kHadamard ? hadamard_order_of(head_dim) : 0),
      norm_bytes_(side.token_norm ? kTokens * 4 : 0),
      code_bytes_(std::int64_t{lines_} * line_ * bits_ / 8),
      param_bytes_(std::int64_t{lines_} * (line_ / group_) * 4) {}

float KiviPages::norm(const std::uint8_t* page, int token) const {
  if (norm_bytes_ == 0) return 1.0f;
  float norm = 0;
  std::memcpy(&norm, page + 4 * token, 4);
  return norm;
}

void KiviPages::to_code_basis(float* rows, std::int64_t queries) const {
  if (order_ > 0) hadamard_rows(rows, queries, d_, d_, order_);
}

// Converts rows of the windows, [count, Hkv, d], to the form that is coded: rotated, and divided by their norms,
// [count].
void KiviPages::to_codes(float* rows, std::int64_t count, float* norms) const {
  const std::int64_t width = std::int64_t{kv_heads_} * d_;
  if (order_ > 0) hadamard_rows(rows, count, width, width, order_);
  for (std::int64_t t = 0; norm_bytes_ > 0 && t < count; ++t) {
    float* row = rows + t * width;
    norms[t] = group_codes::token_norm(row, width);
    for (std::int64_t i = 0; i < width; ++i) row[i] /= norms[t];
  }
}

void KiviPages::params(const std::uint8_t* page, int line, int index, float& scale, float& offset) const {
  std::uint16_t pair[2];
  std::memcpy(pair, page + code_bytes_ + (std::int64_t{line} * (line_ / group_) + index) * 4, 4);
  scale = float16_value(pair[0]), offset = float16_value(pair[1]);
}

std::uint8_t KiviPages::code_at(const std::uint8_t* page, int line, int i) const {
  const int stride = line_ * bits_ / 8;
  return static_cast<std::uint8_t>((page[std::int64_t{line} * stride + i % stride] >> (i / stride * bits_)) &
                                   ((1 << bits_) - 1));
}

// Number of codes from `at` on that share a group and a field.
int KiviPages::run_at(int at) const {
  const int stride = line_ * bits_ / 8;
  return std::min((at / group_ + 1) * group_, (at / stride + 1) * stride) - at;
}

// Writes codes [first, first + count) of a line; only complete groups.
void KiviPages::write_line(std::uint8_t* page, int line, int first, int count, const float* x) const {
  const int stride = line_ * bits_ / 8, mask = (1 << bits_) - 1;
  std::uint8_t codes[kMaxHeadDim];
  for (int at = 0; at < count; at += group_) {
    const group_codes::GroupParams p = encode(side_, x + at, group_, codes);
    const std::uint16_t pair[2] = {float16_bits(p.scale), float16_bits(p.offset)};
    std::memcpy(page + code_bytes_ + (std::int64_t{line} * (line_ / group_) + (first + at) / group_) * 4, pair, 4);
    for (int i = 0, run = 0; i < group_; i += run) {
      const int code = first + at + i;
      run = std::min(run_at(code), group_ - i);
      set_field(codes + i, run, code / stride * bits_, mask, page + std::int64_t{line} * stride + code % stride);
    }
  }
}

void KiviPages::write(std::uint8_t* page, int token, int count, const float* rows) const {
  const std::int64_t width = std::int64_t{kv_heads_} * d_;
  std::vector<float> x(rows, rows + count * width);
  std::vector<float> lines(static_cast<std::size_t>(channel_axis_ ? d_ * count : 0));
  float norms[kTokens];
  to_codes(x.data(), count, norms);
  if (norm_bytes_ > 0) std::memcpy(page + 4 * token, norms, static_cast<std::size_t>(count) * 4);
  for (int head = 0; head < kv_heads_; ++head) {
    std::uint8_t* to = page + norm_bytes_ + head * head_bytes();
    const float* from = x.data() + head * d_;
    if (!channel_axis_) {
      for (int t = 0; t < count; ++t) write_line(to, token + t, 0, d_, from + t * width);
      continue;
    }
    transpose(from, count, width, d_, lines.data());
    for (int c = 0; c < d_; ++c) write_line(to, c, token, count, lines.data() + c * count);
  }
}

void KiviPages::read(const std::uint8_t* page, int head, int count, float* rows) const {
  read_codes(head_page(page, head), count, rows);
  for (int t = 0; norm_bytes_ > 0 && t < count; ++t) {
    for (int i = 0; i < d_; ++i) rows[t * d_ + i] *= norm(page, t);
  }
}

void KiviPages::read_back(const std::uint8_t* page, int head, int count, float* rows) const {
  read(page, head, count, rows);
  to_code_basis(rows, count);  // the transform is its own inverse
}

void KiviPages::read_codes(const std::uint8_t* page, int tokens, float* x) const {
  const int stride = line_ * bits_ / 8, mask = (1 << bits_) - 1;
  std::vector<float> line(static_cast<std::size_t>(line_));
  for (int l = 0; l < (channel_axis_ ? d_ : tokens); ++l) {
    float* to = channel_axis_ ? line.data() : x + std::int64_t{l} * d_;
    for (int at = 0, run = 0; at < line_; at += run) {
      run = run_at(at);
      float scale = 0, offset = 0;
      params(page, l, at / group_, scale, offset);
      expand_field(page + std::int64_t{l} * stride + at % stride, run, at / stride * bits_, mask, scale, offset,
                   to + at);
    }
    for (int t = 0; channel_axis_ && t < tokens; ++t) x[std::int64_t{t} * d_ + l] = line[static_cast<std::size_t>(t)];
  }
}

void KiviPages::dots(const std::uint8_t* page, int head, int count, const float* q, int queries, float* dots) const {
  const int stride = line_ * bits_ / 8, mask = (1 << bits_) - 1;
  const std::uint8_t* codes = head_page(page, head);
  if (!channel_axis_) {
    std::vector<float> rows(static_cast<std::size_t>(count) * static_cast<std::size_t>(d_));
    read_codes(codes, count, rows.data());
    for (int h = 0; h < queries; ++h) row_dots(q + h * d_, rows.data(), count, d_, d_, dots + h * kTokens);
  } else {
    // sum_c q_c (code scale_c + offset_c): the scale is multiplied into the query, and the offsets give one number per
    // group.
    std::fill_n(dots, queries * kTokens, 0.0f);
    for (int at = 0, run = 0; at < count; at += run) {
      run = run_at(at);
      for (int h = 0; h < queries; ++h) {
        float* out = dots + h * kTokens + at;
        float constant = 0;
        for (int c = 0; c < d_; ++c) {
          float scale = 0, offset = 0;
          params(codes, c, at / group_, scale, offset);
          constant += q[h * d_ + c] * offset;
          add_field(codes + std::int64_t{c} * stride + at % stride, run, at / stride * bits_, mask,
                    q[h * d_ + c] * scale, out);
        }
        for (int t = 0; t < run; ++t) out[t] += constant;
      }
    }
  }
  for (int t = 0; norm_bytes_ > 0 && t < count; ++t) {
    const float scale = norm(page, t);
    for (int h = 0; h < queries; ++h) dots[h * kTokens + t] *= scale;
  }
}

void KiviPages::add(const std::uint8_t* page, int head, int count, const float* weights, int queries,
                    float* sums) const {
  std::vector<float> rows(static_cast<std::size_t>(count) * static_cast<std::size_t>(d_));
  read_codes(head_page(page, head), count, rows.data());
  float scaled[kTokens];
  for (int h = 0; h < queries; ++h) {
    for (int t = 0; t < count; ++t) scaled[t] = norm(page, t) * weights[h * kTokens + t];
    add_rows(scaled, rows.data(), count, d_, d_, sums + (2 * h + 1) * d_);
  }
}

void KiviPages::finish(float* sums, int queries) const {
  for (int h = 0; h < queries; ++h) {
    float *plain = sums + 2 * h * d_, *coded = plain + d_;
    to_code_basis(coded, 1);  // the transform is its own inverse
    for (int i = 0; i < d_; ++i) plain[i] += coded[i];
  }
}

// True if group `index` of a line is stored as the encoder codes x: equal codes and parameters.
bool KiviPages::stored_as(const std::uint8_t* page, int line, int index, const float* x) const {
  std::uint8_t codes[kMaxHeadDim];
  const group_codes::GroupParams expected = encode(side_, x, group_, codes);
  float scale = 0, offset = 0;
  params(page, line, index, scale, offset);
  bool same = expected.scale == scale && expected.offset == offset;
  for (int i = 0; same && i < group_; ++i) same = codes[i] == code_at(page, line, index * group_ + i);
  return same;
}

std::int64_t KiviPages::differing_rows(const std::uint8_t* pages, int head, std::int64_t tokens,
                                       const float* rows) const {
  const std::int64_t width = std::int64_t{kv_heads_} * d_;
  std::vector<float> x(rows, rows + tokens * width), norms(static_cast<std::size_t>(tokens)), group;
  to_codes(x.data(), tokens, norms.data());
  std::vector<char> wrong(static_cast<std::size_t>(tokens), 0);
  for (std::int64_t t = 0; norm_bytes_ > 0 && t < tokens; ++t) {
    const float stored = norm(pages + t / kTokens * bytes(), static_cast<int>(t % kTokens));
    if (stored != norms[static_cast<std::size_t>(t)]) wrong[static_cast<std::size_t>(t)] = 1;
  }
  // `line` is a channel or a token; `first` is the first token or channel of the group.
  group.resize(static_cast<std::size_t>(group_));
  const auto check = [&](std::int64_t line, std::int64_t first) {
    for (std::int64_t i = 0; i < group_; ++i) {
      const std::int64_t token = channel_axis_ ? first + i : line, channel = channel_axis_ ? line : first + i;
      group[static_cast<std::size_t>(i)] = x[static_cast<std::size_t>(token * width + head * d_ + channel)];
    }
    const std::int64_t token = channel_axis_ ? first : line, in_page = token % kTokens;
    const std::uint8_t* page = head_page(pages + token / kTokens * bytes(), head);
    const std::int64_t stored_line = channel_axis_ ? line : in_page, index = (channel_axis_ ? in_page : first) / group_;
    if (stored_as(page, static_cast<int>(stored_line), static_cast<int>(index), group.data())) return;
    for (std::int64_t i = 0; i < (channel_axis_ ? group_ : 1); ++i) wrong[static_cast<std::size_t>(token + i)] = 1;
  };
  for (std::int64_t line = 0; line < (channel_axis_ ? d_ : tokens); ++line) {
    for (std::int64_t first = 0; first + group_ <= (channel_axis_ ? tokens : d_); first += group_) check(line, first);
  }
  return std::count(wrong.begin(), wrong.end(), 1);
}

}  // namespace oscar
