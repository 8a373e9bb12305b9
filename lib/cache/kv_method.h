// A KV-cache method in the form that the cache runs: basis, clip, code, encoder and windows per layer. make_method.cpp
// makes it from a row of the registry (registry/registry.h) and, if the row needs one, a bundle.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "cache/rows_coder.h"
#include "checkpoint/model_config.h"
#include "codec/codec.h"
#include "layout/cache_windows.h"
#include "model/rope_phases.h"
#include "registry/registry.h"
#include "transform/transform.h"

namespace oscar {

// The codes of keys and values of one layer. Page sizes may differ between layers and between sides.
struct LayerCode {
  RowCode key, value;
  std::vector<std::array<float, kBands>> key_sigma, value_sigma;  // blocks: [Hkv] deviations; else empty
};

struct KvMethod {
  std::string id;         // "oscar"
  std::string source;     // paper or project that defines it
  bool quantized = true;  // false: bf16, every token stays in BF16
  // Latent attention: a token caches one row, which is key and value, and this many BF16 channels beside it. It has the
  // codes, encoders and clips of keys, but scales chosen as for values: unbiased ones had a larger loss. The value
  // transform is as_value_side() of the keys'. 0: keys and values apart.
  std::int64_t rope_dim = 0;
  CacheWindows windows;
  std::optional<CacheWindows> value_windows;                   // windows of values if they differ, as in some papers
  std::shared_ptr<const RowsCoder> coder = transform_coder();  // never null
  // Used by transform_coder(). Other coders store their own parameters, and their rows stay in the model's basis.
  Encoder key_encoder = Encoder::kMinMax, value_encoder = Encoder::kMinMax;
  std::vector<LayerCode> codes;        // [layers that are not left out]
  std::vector<LayerTransform> layers;  // [layers that are not left out]; empty: identity and no clip everywhere
  // [L] index of each model layer in `codes` and `layers`; empty: in order. kLeftOut: the bundle leaves the layer out,
  // because its queries see fewer tokens than the recent window. Such a layer is exact in BF16. Its pages have the
  // first code, in the model's basis, and no query reads them.
  std::vector<std::int64_t> places;
  static constexpr std::int64_t kLeftOut = -1;

  std::shared_ptr<const RopePhases> rope_phases;  // phases of the model if a transform has a rotated mean; else null

  const SideTransform* transform(std::int64_t layer, Side side) const;  // null: identity
  const RowCode& code(std::int64_t layer, Side side) const;
  // The codec of one KV head: layout, encoder, clip and deviations.
  RowCodec codec(std::int64_t layer, Side side, std::int64_t head) const;

  const CacheWindows& windows_of(Side side) const {
    return side == Side::kValue && value_windows ? *value_windows : windows;
  }
  bool quantized_at(std::int64_t layer) const;
  bool left_out_at(std::int64_t layer) const;
  PageLayout page(std::int64_t layer) const;                 // of one KV head; only for transform_coder()
  const LayerCode& layer_code(std::int64_t layer) const;     // only for transform_coder()
  std::int64_t held_layers(const ModelConfig& model) const;  // number of layers that are not left out
  // True if the decode path has pages for it.
  bool paged() const { return coder->no_pages().empty(); }

  // Bits per element of a quantized token, including parameters; mean over the layers that are not left out.
  double bits_per_element() const;
  // Bytes of a quantized token in one layer, all KV heads, by the same mean; 16 bits per element for a method without
  // codes. With the channels beside it.
  double token_bytes(const ModelConfig& model) const;
  // Bytes of the BF16 windows of one layer: at their capacity or for `context` tokens, whichever is less. All tokens if
  // nothing is coded. With the channels beside the rows of all tokens.
  std::uint64_t window_bytes(const ModelConfig& model, std::int64_t context) const;
  // b + (16 - b) W / T with W = min(sink + recent + (flush - 1) / 2, T), mean of keys and values over the same layers,
  // and of the channels beside them.
  // For methods of other papers: the bits that a sequence holds (MethodEngine).
  double bits_per_element_at(std::int64_t context) const;
};

// Bytes of the pages and windows of one sequence of `context` tokens, all layers: full pages, windows at their
// capacity. The cache's spare memory from growth in steps does not count, so the figure is the same everywhere. For a
// layer that is left out, or that keeps its window outside the cache, the tokens that a query sees count, in BF16.
std::uint64_t allocated_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context);
// The same without left-out layers.
std::uint64_t held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context);

// "64/256", or "K 64/129 in blocks of 128, V 64/256" if the sides differ: the form of settings in reports.
std::string by_side(const std::string& key, const std::string& value);

// UsageError for an id that is neither in method_ids() nor the bundle's own; it has the list and a suggestion.
[[noreturn]] void refuse_method(const std::string& id, const Bundle* bundle);

// id: one of method_ids(), or the name of the bundle's own method. Methods of other papers have their authors' windows;
// `windows` is for the others. UsageError for an unknown id (with the list and a suggestion), for a missing bundle, or
// for windows below zero. InputError for a bundle whose geometry differs from the model's, or for a head size that
// cannot be coded.
KvMethod make_method(const std::string& id, const ModelConfig& model, const Bundle* bundle,
                     const CacheWindows& windows);

// A method of another paper, with the windows and parameters of its description. UsageError if it does not fit the
// model.
KvMethod make_spec_method(const MethodSpec& description, const ModelConfig& model);

}  // namespace oscar
