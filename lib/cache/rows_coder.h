// How a method codes the rows of a cache: all that differs between codes of transformed rows (coders.h:
// transform_coder()) and the description of another paper's method. make_method.cpp chooses a coder for each method,
// everything else calls it: nothing outside asks where a method comes from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cache/kv_cache.h"
#include "checkpoint/model_config.h"
#include "layout/side.h"

namespace oscar {

struct KvMethod;

// A coder knows what is its own; windows, transforms and layers that are left out are those of the method that it is
// given, which must be the method that holds it. Const functions may run in several threads.
class RowsCoder {
 public:
  virtual ~RowsCoder() = default;

  virtual std::string settings(const KvMethod& method, const ModelConfig& model) const = 0;  // in words, for reports

  // Of a quantized token, parameters included; mean over the layers that the method holds.
  virtual double bits_per_element(const KvMethod& method) const = 0;
  // With the windows of a sequence of `context` tokens: KvMethod::bits_per_element_at().
  virtual double bits_per_element_at(const KvMethod& method, std::int64_t context) const = 0;
  // Of a quantized method: oscar::held_bytes() of kv_method.h.
  virtual std::uint64_t held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context) const = 0;

  // What a reader of the cache gets back of rows, [T, Hkv, d] FP32: decoded where the method codes them, as they were
  // elsewhere. rows: the same shape in the basis of the cache, the tokens from position 0 on; on the CPU, or, unless
  // row_by_row(), on a GPU. NumericalError when a row is not finite.
  virtual at::Tensor code(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows) const = 0;
  // Each row is coded on its own by KvMethod::codec(), as the kernels that write pages do on a GPU.
  virtual bool row_by_row() const = 0;

  // Why the paged cache has no pages for the codes: what follows the method's name; empty when it has.
  virtual std::string no_pages() const = 0;
  // Pages of each side and layer, without windows; nothing where no_pages() says why. InputError for a layout that the
  // head size cannot carry.
  virtual std::optional<KvCacheSpec> pages(const KvMethod& method, const ModelConfig& model) const = 0;
};

}  // namespace oscar
