// How a method codes the rows of a cache. This interface covers all differences between codes of transformed rows
// (transform_coder()) and the methods of other papers. make_method.cpp chooses a coder for each method. No
// other code asks where a method comes from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cache/kv_cache.h"
#include "checkpoint/model_config.h"
#include "layout/side.h"
#include "registry/method_spec.h"

namespace oscar {

struct KvMethod;

// A coder stores only its own parameters. Pass the KvMethod that owns it: windows, transforms and left-out layers come
// from there. Const functions may run in several threads.
class RowsCoder {
 public:
  virtual ~RowsCoder() = default;

  virtual std::string settings(const KvMethod& method, const ModelConfig& model) const = 0;  // text for reports

  // Bits per element of a quantized token, including parameters; mean over the layers that the method holds.
  virtual double bits_per_element(const KvMethod& method) const = 0;
  // Includes the windows of a sequence of `context` tokens: KvMethod::bits_per_element_at().
  virtual double bits_per_element_at(const KvMethod& method, std::int64_t context) const = 0;
  // oscar::held_bytes() of kv_method.h, for a quantized method.
  virtual std::uint64_t held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context) const = 0;

  // The rows that a reader of the cache gets for `rows`, [T, Hkv, d] FP32: decoded if the method codes them, else
  // unchanged. rows: the same shape in the basis of the cache, tokens from position 0 on. They are on the CPU or,
  // without pages, may be on a GPU. NumericalError if a row is not finite.
  virtual at::Tensor code(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows) const = 0;

  // Why the paged cache has no pages for the codes: text that follows the method's name; empty if it has, and then
  // KvMethod::codec() codes each row separately.
  virtual std::string no_pages() const = 0;
  // Pages of each side and layer, without windows; nullopt if no_pages() gives a reason. InputError for a layout that
  // does not support the head size.
  virtual std::optional<KvCacheSpec> pages(const KvMethod& method, const ModelConfig& model) const = 0;
};

// Codes each row separately by KvMethod::codec(), with the codes, encoders and layers of the method.
std::shared_ptr<const RowsCoder> transform_coder();

// A method of another paper (methods/engine.h), whose rows stay in the model's basis. UsageError if it does not fit the
// model.
std::shared_ptr<const RowsCoder> spec_coder(const MethodSpec& description, const ModelConfig& model);

}  // namespace oscar
