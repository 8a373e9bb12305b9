#include "cache/row_pages.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/errors.h"
#include "cache/row_loops.h"
#include "codec/page_params.h"

namespace oscar {

RowPages::RowPages(const PageLayout& page, Side side, std::vector<RowCodec> codecs)
    : page_(page),
      layout_(side == Side::kKey ? page.key : page.value),
      side_(side),
      codecs_(std::move(codecs)),
      runs_(scale_runs(layout_)) {
  for (const RowCodec& codec : codecs_) encode_ = row_encoder(codec);  // one layout, so one encoder
  const SideLayout& layout = layout_;
  refined_ = !codecs_.empty() && codecs_.front().code.refined;
  for (const RowCodec& codec : codecs_) sigma_.insert(sigma_.end(), codec.sigma.begin(), codec.sigma.end());
  for (int b = 0; b < layout.planes; ++b) {
    const PlaneLayout& plane = layout.plane[b];
    std::vector<std::uint16_t>& places = places_.emplace_back();
    for (int token = 0; token < kPageTokens; ++token) {
      for (int i = 0; i < plane.channels; ++i) {
        const int bit = side == Side::kKey ? plane.key_bit(token, i) : plane.value_bit(token, i);
        places.push_back(static_cast<std::uint16_t>(bit / plane.width));
      }
    }
  }
}

void RowPages::put(std::uint8_t* page, int token, const std::uint8_t* codes, const std::uint8_t* params) const {
  for (int b = 0; b < layout_.planes; ++b) {
    const PlaneLayout& plane = layout_.plane[b];
    const std::uint16_t* places = places_[static_cast<std::size_t>(b)].data() + token * plane.channels;
    const unsigned mask = (1u << plane.width) - 1u;
    for (int i = 0; i < plane.channels; ++i) {
      const int bit = places[i] * plane.width;
      std::uint8_t& byte = page[plane.offset + bit / 8];
      byte = static_cast<std::uint8_t>((byte & ~(mask << (bit % 8))) | codes[plane.first_channel + i] << (bit % 8));
    }
  }
  const auto size = static_cast<std::size_t>(layout_.param_size());
  for (int g = 0; g < layout_.quant_groups; ++g) {
    std::memcpy(page + layout_.param_byte(token, g), params + static_cast<std::size_t>(g) * size, size);
  }
}

void RowPages::get(const std::uint8_t* page, int token, std::uint8_t* codes, std::uint8_t* params) const {
  std::memset(codes, 0, static_cast<std::size_t>(layout_.head_dim));
  for (int b = 0; b < layout_.planes; ++b) {
    const PlaneLayout& plane = layout_.plane[b];
    const std::uint16_t* places = places_[static_cast<std::size_t>(b)].data() + token * plane.channels;
    for (int i = 0; i < plane.channels; ++i) {
      const int bit = places[i] * plane.width;
      codes[plane.first_channel + i] =
          static_cast<std::uint8_t>((page[plane.offset + bit / 8] >> (bit % 8)) & ((1 << plane.width) - 1));
    }
  }
  const auto size = static_cast<std::size_t>(layout_.param_size());
  for (int g = 0; g < layout_.quant_groups; ++g) {
    std::memcpy(params + static_cast<std::size_t>(g) * size, page + layout_.param_byte(token, g), size);
  }
}

void RowPages::read_levels(const std::uint8_t* page, int tokens, const float* sigma, float* levels, float* scale,
                           float* zero) const {
  const int d = layout_.head_dim;
  std::uint32_t words[kPageTokens * kMaxHeadDim / 16];
  int coded = 0;
  for (const ScaleRun& run : runs_) coded += run.channels;
  if (coded < d) std::fill_n(levels, tokens * d, 0.0f);
  for (int b = 0; b < layout_.planes; ++b) {
    const PlaneLayout& plane = layout_.plane[b];
    std::memcpy(words, page + plane.offset, static_cast<std::size_t>(plane.bytes()));
    const float offset = level_offset(layout_, plane.width);
    float* to = levels + plane.first_channel;
    if (side_ == Side::kKey && expands_keys(plane)) {
      expand_keys(plane, words, tokens, offset, d, to);
    } else if (side_ == Side::kValue && expands_values(plane)) {
      expand_values(plane, words, tokens, offset, d, to);
    } else {
      expand_by_table(plane, words, places_[static_cast<std::size_t>(b)].data(), tokens, offset, d, to);
    }
  }
  for (int g = 0; g < layout_.quant_groups; ++g) {
    for (int t = 0; t < tokens; ++t) {
      const auto [s, z] = read_param(layout_, page, t, g, sigma);
      scale[g * kPageTokens + t] = s, zero[g * kPageTokens + t] = z;
    }
  }
}

void RowPages::write_row(std::uint8_t* head_page, const RowCodec& codec, int token, const float* row) const {
  std::uint8_t codes[kMaxHeadDim], params[kMaxHeadDim * 4];
  std::int64_t bad = -1;
  if (!encode_(codec, row, 1, layout_.head_dim, codes, params, &bad)) {
    throw NumericalError("a row to be coded is not finite");
  }
  put(head_page, token, codes, params);
}

void RowPages::write(std::uint8_t* page, int token, int count, const float* rows) const {
  for (int t = 0; t < count; ++t) {
    std::uint8_t* to = page;
    for (const RowCodec& codec : codecs_) {
      write_row(to, codec, token + t, rows);
      rows += layout_.head_dim, to += page_.bytes();
    }
  }
}

// The rows of one KV head in a page: xhat = scale (level - zero) by run.
struct RowPages::Levels {
  std::unique_ptr<float[]> storage;
  float *levels, *scale, *zero;  // [count, d], [runs, 64] x 2
};

RowPages::Levels RowPages::levels_of(const std::uint8_t* page, int head, int count) const {
  const std::size_t rows = kPageTokens * static_cast<std::size_t>(layout_.head_dim);
  const std::size_t params = kPageTokens * runs_.size();
  Levels x{std::make_unique_for_overwrite<float[]>(rows + 2 * params), nullptr, nullptr, nullptr};
  x.levels = x.storage.get(), x.scale = x.levels + rows, x.zero = x.scale + params;
  read_levels(page + head * page_.bytes(), count, sigma_.data() + head * kBands, x.levels, x.scale, x.zero);
  return x;
}

// sum_g s_g (<q_g, l_g> - z_g sum q): scales and zero points stay outside the dot products.
void RowPages::dots(const std::uint8_t* page, int head, int count, const float* q, int queries, float* dots) const {
  const int d = layout_.head_dim;
  const Levels x = levels_of(page, head, count);
  float part[kPageTokens];
  for (int h = 0; h < queries; ++h, q += d, dots += kPageTokens) {
    std::fill_n(dots, count, 0.0f);
    for (std::size_t g = 0; g < runs_.size(); ++g) {
      const auto [channel, channels, plane] = runs_[g];
      const int target = target_of(g);
      row_dots(q + target, x.levels + channel, count, channels, d, part);
      float sum = 0.0f;
      for (int i = 0; i < channels; ++i) sum += q[target + i];
      const float *s = x.scale + g * kPageTokens, *z = x.zero + g * kPageTokens;
      for (int t = 0; t < count; ++t) dots[t] += s[t] * (part[t] - z[t] * sum);
    }
  }
}

// sum_t w_t s_t l_t and, separately, sum_t w_t s_t z_t.
void RowPages::add(const std::uint8_t* page, int head, int count, const float* weights, int queries,
                   float* sums) const {
  const int d = layout_.head_dim;
  const Levels x = levels_of(page, head, count);
  float scaled[kPageTokens];
  for (int h = 0; h < queries; ++h, weights += kPageTokens, sums += sum_width()) {
    for (std::size_t g = 0; g < runs_.size(); ++g) {
      const auto [channel, channels, plane] = runs_[g];
      const float *s = x.scale + g * kPageTokens, *z = x.zero + g * kPageTokens;
      for (int t = 0; t < count; ++t) scaled[t] = weights[t] * s[t];
      float& zeros = sums[d + static_cast<int>(g)];
      for (int t = 0; t < count; ++t) zeros += scaled[t] * z[t];
      add_rows(scaled, x.levels + channel, count, channels, d, sums + target_of(g));
    }
  }
}

void RowPages::finish(float* sums, int queries) const {
  for (int h = 0; h < queries; ++h, sums += sum_width()) {
    for (std::size_t g = 0; g < runs_.size(); ++g) {
      const auto [channel, channels, plane] = runs_[g];
      const int target = target_of(g);
      const float zeros = sums[layout_.head_dim + static_cast<int>(g)];
      for (int i = target; i < target + channels; ++i) sums[i] -= zeros;
    }
  }
}

std::int64_t RowPages::differing_rows(const std::uint8_t* pages, int head, std::int64_t tokens,
                                      const float* rows) const {
  const auto d = static_cast<std::size_t>(layout_.head_dim);
  const RowCodec& codec = codecs_[static_cast<std::size_t>(head)];
  std::vector<std::uint8_t> codes(d), stored(d), params(d * 4), stored_params(d * 4);
  std::int64_t differing = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::uint8_t* page = pages + t / kPageTokens * bytes() + head * page_.bytes();
    encode_rows(codec, rows + (t * std::ssize(codecs_) + head) * layout_.head_dim, 1, 0, codes.data(), params.data());
    get(page, static_cast<int>(t % kPageTokens), stored.data(), stored_params.data());
    const bool same =
        codes == stored && std::equal(params.begin(), params.begin() + codec.code.param_bytes(), stored_params.begin());
    differing += same ? 0 : 1;
  }
  return differing;
}

void RowPages::read_back(const std::uint8_t* page, int head, int count, float* rows) const {
  const int d = layout_.head_dim;
  const Levels x = levels_of(page, head, count);
  std::fill_n(rows, count * d, 0.0f);  // channels of width 0
  for (std::size_t g = 0; g < runs_.size(); ++g) {
    const auto [channel, channels, plane] = runs_[g];
    const int target = target_of(g);
    for (int t = 0; t < count; ++t) {
      const float s = x.scale[g * kPageTokens + static_cast<std::size_t>(t)],
                  z = x.zero[g * kPageTokens + static_cast<std::size_t>(t)];
      for (int i = 0; i < channels; ++i) {
        float& to = rows[t * d + target + i];
        const float value = (x.levels[t * d + channel + i] - z) * s;
        to = target == channel ? value : to + value;
      }
    }
  }
}

}  // namespace oscar
