// Codes of transformed rows, each row separately: the bundles of oscar-fit, naive2 and hadamard2.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "base/parallel.h"
#include "cache/kv_method.h"
#include "cache/row_pages.h"
#include "cache/rows_coder.h"

namespace oscar {
namespace {

// decode(encode(row)) for the rows [begin, end) of rows [T, Hkv, d] FP32; the other rows are unchanged.
at::Tensor quantized_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows,
                          std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = rows.size(1), d = rows.size(2);
  at::Tensor out = rows.clone();
  constexpr std::int64_t kRows = 64;
  const std::int64_t blocks = (std::max<std::int64_t>(end - begin, 0) + kRows - 1) / kRows;
  const float* source = rows.const_data_ptr<float>();
  float* target = out.mutable_data_ptr<float>();
  parallel_ranges(blocks * heads, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      const std::int64_t head = i % heads, first = begin + i / heads * kRows, row = first * heads + head;
      try {
        quantize_rows(method.codec(layer, side, head), source + row * d, std::min(kRows, end - first), heads * d,
                      target + row * d, heads * d);
      } catch (const NumericalError& e) {
        throw NumericalError("layer " + std::to_string(layer) + ", KV head " + std::to_string(head) +
                             (side == Side::kKey ? ", keys" : ", values") + " from token " + std::to_string(first) +
                             " on: " + e.what());
      }
    }
  });
  return out;
}

class TransformCoder : public RowsCoder {
 public:
  std::string settings(const KvMethod& method, const ModelConfig&) const override {
    return settings_text(method.codes.front().key);
  }
  double bits_per_element(const KvMethod& method) const override;
  double bits_per_element_at(const KvMethod& method, std::int64_t context) const override {
    const double bits = bits_with_windows(method.bits_per_element(), method.windows, context);
    return bits_with_beside(bits, method.codes.front().key.head_dim, method.rope_dim);  // beside one KV head
  }
  std::uint64_t held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context) const override;
  at::Tensor code(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows) const override {
    const CacheWindows& windows = method.windows_of(side);
    return quantized_rows(method, layer, side, rows, windows.sink, windows.quantized_end(rows.size(0)));
  }
  std::string no_pages() const override { return ""; }
  std::optional<KvCacheSpec> pages(const KvMethod& method, const ModelConfig& model) const override;
};

double TransformCoder::bits_per_element(const KvMethod& method) const {
  double bits = 0.0, elements = 0.0;
  for (const LayerCode& c : method.codes) {
    bits += c.key.bits_per_element() * c.key.head_dim + c.value.bits_per_element() * c.value.head_dim;
    elements += c.key.head_dim + c.value.head_dim;
  }
  return bits / elements;
}

std::uint64_t TransformCoder::held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context) const {
  const CacheWindows& w = method.windows;
  const std::int64_t coded = w.quantized_end(context) - w.sink;
  const std::int64_t pages = (coded + kPageTokens - 1) / kPageTokens * model.kv_heads;
  const std::uint64_t full = method.window_bytes(model, context);
  std::uint64_t bytes = 0;
  for (std::int64_t layer = 0; layer < model.kv_layers(); ++layer) {
    if (!method.left_out_at(layer)) bytes += static_cast<std::uint64_t>(pages * method.page(layer).bytes()) + full;
  }
  return bytes;
}

std::optional<KvCacheSpec> TransformCoder::pages(const KvMethod& method, const ModelConfig& model) const {
  KvCacheSpec spec{.rope_dim = method.rope_dim};
  for (std::int64_t layer = 0; layer < model.kv_layers(); ++layer) {
    const PageLayout page = method.page(layer);
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (side == Side::kValue && method.rope_dim > 0) {
        spec.sides[1].pages.push_back(spec.sides[0].pages.back());
        continue;
      }
      std::vector<RowCodec> codecs;
      for (std::int64_t head = 0; head < model.kv_heads; ++head) codecs.push_back(method.codec(layer, side, head));
      spec.sides[side == Side::kKey ? 0 : 1].pages.push_back(std::make_shared<RowPages>(page, side, std::move(codecs)));
    }
  }
  return spec;
}

}  // namespace

std::shared_ptr<const RowsCoder> transform_coder() {
  static const auto coder = std::make_shared<const TransformCoder>();  // one object for all: it has no state
  return coder;
}

}  // namespace oscar
