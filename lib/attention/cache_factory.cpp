#include "attention/cache_factory.h"

#include <stdexcept>

#include "cache/kivi_pages.h"
#include "cache/row_pages.h"

namespace oscar {
namespace {

void add_row_pages(const KvMethod& method, const ModelConfig& model, KvCacheSpec& spec) {
  spec.shared_pages = true;
  spec.one_vector = method.one_vector;
  for (std::int64_t layer = 0; layer < model.kv_layers(); ++layer) {
    const PageLayout page = method.page(layer);
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (side == Side::kValue && method.one_vector) {
        spec.sides[1].pages.push_back(spec.sides[0].pages.back());
        continue;
      }
      std::vector<RowCodec> codecs;
      for (std::int64_t head = 0; head < model.kv_heads; ++head) codecs.push_back(method.codec(layer, side, head));
      spec.sides[side == Side::kKey ? 0 : 1].pages.push_back(std::make_shared<RowPages>(page, side, std::move(codecs)));
    }
  }
}

void add_kivi_pages(const MethodSpec& method, const ModelConfig& model, KvCacheSpec& spec) {
  if (!has_pages(method)) throw std::invalid_argument("method " + method.id + " has no pages");
  for (const Side side : {Side::kKey, Side::kValue}) {
    const auto pages = std::make_shared<KiviPages>(side == Side::kKey ? method.key : method.value,
                                                   static_cast<int>(model.kv_heads), static_cast<int>(model.head_dim));
    spec.sides[side == Side::kKey ? 0 : 1].pages.assign(static_cast<std::size_t>(model.kv_layers()), pages);
  }
}

}  // namespace

KvCacheSpec cache_spec(const KvMethod& method, const ModelConfig& model) {
  if (method.codebooks) throw std::invalid_argument("method " + method.id + " has codebooks and no pages");
  KvCacheSpec spec;
  spec.kv_heads = model.kv_heads, spec.head_dim = model.head_dim;
  for (const Side side : {Side::kKey, Side::kValue}) {
    spec.sides[side == Side::kKey ? 0 : 1].windows = method.quantised ? method.windows_of(side) : all_in_sink();
  }
  if (method.engine) {
    add_kivi_pages(method.engine->description(), model, spec);
  } else {
    add_row_pages(method, model, spec);
  }
  return spec;
}

std::unique_ptr<PagedBackend> make_backend(const KvMethod& method, const ModelConfig& model, at::Device device) {
  return device.is_cuda() ? make_cuda_backend(method, model, device) : make_cpu_backend(method, model);
}

}  // namespace oscar
