// A KV-cache method as the cache runs it: basis, clip, code, encoder, windows for each layer. Made from a row of the
// registry (registry/registry.h) and, where the row needs one, a bundle: make_method.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "cache/coders.h"
#include "checkpoint/model_config.h"
#include "codec/codec.h"
#include "layout/cache_windows.h"
#include "model/rope_phases.h"
#include "registry/registry.h"
#include "rotation/transform.h"

namespace oscar {

// What is stored for the keys and the values of one layer. Page sizes may differ between layers and between sides.
struct LayerCode {
  RowCode key, value;
  std::vector<std::array<float, kBands>> key_sigma, value_sigma;  // blocks: [Hkv] deviation of each block; else empty
  std::vector<std::shared_ptr<const FeedbackMetric>> key_metric{},
      value_metric{};  // encoder feedback: [Hkv]; else empty
};

struct KvMethod {
  std::string id;         // "oscar"
  std::string source;     // paper or project the definition follows
  bool quantized = true;  // false: bf16, every token stays in BF16
  // Of a model with latent attention: a token caches one vector, which is key and value. Codes, encoders and clips are
  // those of the keys, scales are chosen as those of values; the value transform is the keys' with its way back.
  bool one_vector = false;
  CacheWindows windows;
  std::optional<CacheWindows> value_windows;  // where those of values are others, as some papers have them
  std::shared_ptr<const RowsCoder> coder = transform_coder();  // never null
  // Of transform_coder(); other coders keep what they need, and their rows stay in the model's basis.
  Encoder key_encoder = Encoder::kMinMax, value_encoder = Encoder::kMinMax;
  std::vector<LayerCode> codes;        // [layers that are not left out]
  std::vector<LayerTransform> layers;  // the same; empty: identity everywhere, no clip
  // [L] of each of the model's layers in `codes` and `layers`; empty: in order. kLeftOut: the bundle leaves the layer
  // out, because its queries see less than the recent window. It is exact in BF16; its pages have the first code, in
  // the model's basis, and no query reads them.
  std::vector<std::int64_t> places;
  static constexpr std::int64_t kLeftOut = -1;

  std::shared_ptr<const RopePhases> rope_phases;  // of the model, where a transform has a rotated mean; else null

  const SideTransform* transform(std::int64_t layer, Side side) const;  // null: identity
  const RowCode& code(std::int64_t layer, Side side) const;
  // The codec of one KV head: layout, encoder, clip and deviations.
  RowCodec codec(std::int64_t layer, Side side, std::int64_t head) const;

  const CacheWindows& windows_of(Side side) const {
    return side == Side::kValue && value_windows ? *value_windows : windows;
  }
  bool quantized_at(std::int64_t layer) const;
  bool left_out_at(std::int64_t layer) const;
  PageLayout page(std::int64_t layer) const;                   // of one KV head, of transform_coder()
  const LayerCode& layer_code(std::int64_t layer) const;       // of transform_coder()
  std::int64_t vectors() const { return one_vector ? 1 : 2; }  // that a token caches for each KV head
  std::int64_t held_layers(const ModelConfig& model) const;    // that are not left out
  // The decode path has pages for it.
  bool paged() const { return coder->no_pages().empty(); }

  // Of a quantized token, parameters included; mean over layers, without those that are left out.
  double bits_per_element() const;
  // Bytes of a quantized token in one layer, all KV heads, by the same mean; 16-bit ones for a method that codes
  // nothing.
  double token_bytes(const ModelConfig& model) const;
  // Of the BF16 windows of one layer, at their capacity or of so many tokens; of all tokens where nothing is coded.
  std::uint64_t window_bytes(const ModelConfig& model, std::int64_t context) const;
  // b + (16 - b) W / T with W = min(sink + recent + (flush - 1) / 2, T), mean of keys and values over these layers; for
  // methods of other papers what a sequence holds (MethodEngine).
  double bits_per_element_at(std::int64_t context) const;
};

// Bytes of the pages and windows of one sequence of `context` tokens, all layers: whole pages, windows at their
// capacity. What a cache holds beyond that (growth in steps) is not counted, so that the figure is the same everywhere.
// Of a layer that is left out, or that keeps its window beside the cache, the tokens that a query sees count, in BF16.
std::uint64_t allocated_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context);
// The same without layers that are left out.
std::uint64_t held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context);

// "64/256", or "K 64/129 in blocks of 128, V 64/256" where the sides differ: settings in reports.
std::string by_side(const std::string& key, const std::string& value);

// UsageError: the id is none of method_ids() nor, with a bundle, its own; with the list and a suggestion.
[[noreturn]] void refuse_method(const std::string& id, const Bundle* bundle);

// id: one of method_ids(), or the name of the bundle's own method. Methods of other papers come with their authors'
// windows; `windows` is for the others. UsageError for an unknown id (with the list and a
// suggestion), for a bundle that is needed and absent, or for windows below zero; InputError for a bundle whose
// geometry is not the model's or a head size that cannot be coded.
KvMethod make_method(const std::string& id, const ModelConfig& model, const Bundle* bundle,
                     const CacheWindows& windows);

// A method of another paper with the windows and knobs of the description. UsageError when it does not fit the model.
KvMethod make_spec_method(const MethodSpec& description, const ModelConfig& model);

}  // namespace oscar
