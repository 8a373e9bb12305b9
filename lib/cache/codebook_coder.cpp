// Codes of learned codebooks: CodebookEngine. The paged cache has no pages for them.
#include <ATen/ATen.h>

#include <cmath>

#include "cache/coders.h"
#include "cache/kv_method.h"
#include "methods/codebook_engine.h"

namespace oscar {
namespace {

class CodebookCoder : public RowsCoder {
 public:
  CodebookCoder(std::vector<LayerTransform> layers, std::int64_t group, Encoder encoder, const ModelConfig& model)
      : engine_(std::move(layers), group, encoder, model) {}

  std::string settings(const KvMethod&, const ModelConfig&) const override { return "codebooks"; }
  double bits_per_element(const KvMethod&) const override { return engine_.bits_per_element(); }
  double bits_per_element_at(const KvMethod& method, std::int64_t context) const override {
    return bits_with_windows(method.bits_per_element(), method.windows, context);
  }
  std::uint64_t held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context) const override;
  std::uint64_t table_bytes(bool with_errors) const override {
    return codebook_bytes(engine_.layers()) + (with_errors ? engine_.error_bytes() : 0);
  }
  CodedRows code(const KvMethod&, std::int64_t layer, Side side, const at::Tensor& rows,
                 bool with_variance) const override {
    CodedRows coded{engine_.reconstruct(layer, side, rows)};
    if (with_variance) coded.variance = engine_.added_variance(layer, rows);
    return coded;
  }
  bool row_by_row() const override { return false; }
  KeyErrors key_errors() const override { return engine_.knows_errors() ? KeyErrors::kTold : KeyErrors::kNotTold; }
  at::Tensor code_basis(std::int64_t layer, const at::Tensor& q) const override { return engine_.code_basis(layer, q); }
  std::string no_pages() const override { return "has codebooks, which the paged cache does not hold"; }
  std::optional<KvCacheSpec> pages(const KvMethod&, const ModelConfig&) const override { return std::nullopt; }

 private:
  CodebookEngine engine_;
};

// Codes of every coded token, without pages.
std::uint64_t CodebookCoder::held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context) const {
  const CacheWindows& w = method.windows;
  const std::int64_t coded = w.quantised_end(context) - w.sink, layers = method.held_layers(model);
  const auto elements = static_cast<double>(2 * layers * model.kv_heads * model.head_dim);
  const double bits = method.bits_per_element() * elements * static_cast<double>(coded);
  return static_cast<std::uint64_t>(std::ceil(bits / 8)) +
         method.window_bytes(model, context) * static_cast<std::uint64_t>(layers);
}

}  // namespace

std::shared_ptr<const RowsCoder> codebook_coder(std::vector<LayerTransform> layers, std::int64_t group, Encoder encoder,
                                                const ModelConfig& model) {
  return std::make_shared<const CodebookCoder>(std::move(layers), group, encoder, model);
}

}  // namespace oscar
