#include "runtime/described_pages.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "codec/codec.h"
#include "codec/float16.h"
#include "codec/row_math.h"
#include "methods/group_codes.h"

namespace oscar {
namespace {

constexpr int kTokens = kDescribedPageTokens;

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

OSCAR_VECTOR_CLONES float dot(const float* a, const float* b, int n) {
  float lanes[16] = {};
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int l = 0; l < 16; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  for (; i < n; ++i) lanes[0] += a[i] * b[i];
  return lanes[0];
}

}  // namespace

DescribedPages::DescribedPages(const SideDescription& side, int head_dim)
    : channel_axis_(side.axis == CacheAxis::kChannel),
      integer_zero_(side.code == CacheCode::kIntegerZero),
      bits_(side.bits),
      d_(head_dim),
      line_(channel_axis_ ? kTokens : head_dim),
      group_(side.group == 0 ? line_ : std::min(side.group, line_)),
      lines_(channel_axis_ ? head_dim : kTokens),
      clip_(static_cast<float>(side.clip)),
      code_bytes_(std::int64_t{lines_} * line_ * bits_ / 8),
      param_bytes_(std::int64_t{lines_} * (line_ / group_) * 4) {}

void DescribedPages::params(const std::uint8_t* page, int line, int index, float& scale, float& offset) const {
  std::uint16_t pair[2];
  std::memcpy(pair, page + code_bytes_ + (std::int64_t{line} * (line_ / group_) + index) * 4, 4);
  scale = float16_value(pair[0]), offset = float16_value(pair[1]);
}

std::uint8_t DescribedPages::code_at(const std::uint8_t* page, int line, int i) const {
  const int stride = line_ * bits_ / 8;
  return static_cast<std::uint8_t>((page[std::int64_t{line} * stride + i % stride] >> (i / stride * bits_)) &
                                   ((1 << bits_) - 1));
}

// Codes from `at` on that share a group and a field.
int DescribedPages::run_at(int at) const {
  const int stride = line_ * bits_ / 8;
  return std::min((at / group_ + 1) * group_, (at / stride + 1) * stride) - at;
}

// Codes [first, first + count) of a line, whole groups.
void DescribedPages::write_line(std::uint8_t* page, int line, int first, int count, const float* x) const {
  const int stride = line_ * bits_ / 8, mask = (1 << bits_) - 1;
  std::uint8_t codes[kMaxHeadDim];
  for (int at = 0; at < count; at += group_) {
    const group_codes::GroupParams p = integer_zero_
                                           ? group_codes::encode_integer_zero(x + at, group_, bits_, clip_, codes)
                                           : group_codes::encode_uniform(x + at, group_, bits_, codes);
    const std::uint16_t pair[2] = {float16_bits(p.scale), float16_bits(p.offset)};
    std::memcpy(page + code_bytes_ + (std::int64_t{line} * (line_ / group_) + (first + at) / group_) * 4, pair, 4);
    for (int i = 0; i < group_; ++i) {
      const int code = first + at + i, shift = code / stride * bits_;
      std::uint8_t& byte = page[std::int64_t{line} * stride + code % stride];
      byte = static_cast<std::uint8_t>((byte & ~(mask << shift)) | codes[i] << shift);
    }
  }
}

void DescribedPages::write(std::uint8_t* page, int token, int count, const float* x, std::int64_t stride) const {
  if (!channel_axis_) {
    for (int t = 0; t < count; ++t) write_line(page, token + t, 0, d_, x + t * stride);
    return;
  }
  float column[kTokens];
  for (int c = 0; c < d_; ++c) {
    for (int t = 0; t < count; ++t) column[t] = x[t * stride + c];
    write_line(page, c, token, count, column);
  }
}

void DescribedPages::read(const std::uint8_t* page, int tokens, float* x) const {
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

void DescribedPages::dots(const std::uint8_t* page, int tokens, const float* q, int queries, float* dots) const {
  const int stride = line_ * bits_ / 8, mask = (1 << bits_) - 1;
  if (!channel_axis_) {
    std::vector<float> rows(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(d_));
    read(page, tokens, rows.data());
    for (int h = 0; h < queries; ++h) {
      for (int t = 0; t < tokens; ++t) dots[h * kTokens + t] = dot(q + h * d_, rows.data() + std::int64_t{t} * d_, d_);
    }
    return;
  }
  // sum_c q_c (code scale_c + offset_c): the scale goes into the query, the offsets into one number for each group.
  std::fill_n(dots, queries * kTokens, 0.0f);
  for (int at = 0, run = 0; at < tokens; at += run) {
    run = run_at(at);
    for (int h = 0; h < queries; ++h) {
      float* out = dots + h * kTokens + at;
      float constant = 0;
      for (int c = 0; c < d_; ++c) {
        float scale = 0, offset = 0;
        params(page, c, at / group_, scale, offset);
        constant += q[h * d_ + c] * offset;
        add_field(page + std::int64_t{c} * stride + at % stride, run, at / stride * bits_, mask, q[h * d_ + c] * scale,
                  out);
      }
      for (int t = 0; t < run; ++t) out[t] += constant;
    }
  }
}

void DescribedPages::stored_group(const std::uint8_t* page, int line, int index, std::uint8_t* codes, float* scale,
                                  float* offset) const {
  params(page, line, index, *scale, *offset);
  for (int i = 0; i < group_; ++i) codes[i] = code_at(page, line, index * group_ + i);
}

}  // namespace oscar
