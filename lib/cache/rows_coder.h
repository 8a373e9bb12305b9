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

// What a reader of the cache gets back of rows.
struct CodedRows {
  at::Tensor rows;  // [T, Hkv, d] FP32: decoded where the method codes them, as they were elsewhere
  // [T, Hkv, G] FP32: what the codes add to the variance of a channel in each of G equal runs of channels of
  // code_basis(), 0 in rows that are not coded. Undefined where it was not asked for, or is 0 everywhere.
  at::Tensor variance{};
};

// What a method can tell of the errors of decoded keys.
enum class KeyErrors : std::uint8_t {
  kTold,  // RowsCoder::code() gives their variance
  kNone,  // they add none to the logits: decoded keys keep their norm
};

// A coder knows what is its own; windows, transforms and layers that are left out are those of the method that it is
// given, which must be the method that holds it. Const functions may run in several threads.
class RowsCoder {
 public:
  virtual ~RowsCoder() = default;

  virtual std::string settings(const KvMethod& method, const ModelConfig& model) const = 0;  // in words, for reports
  virtual bool quantised(std::int64_t /*layer*/) const { return true; }  // false: the layer stays in BF16

  // Of a quantised token, parameters included; mean over the layers that the method holds.
  virtual double bits_per_element(const KvMethod& method) const = 0;
  // With the windows of a sequence of `context` tokens: KvMethod::bits_per_element_at().
  virtual double bits_per_element_at(const KvMethod& method, std::int64_t context) const = 0;
  // Of a quantised method: oscar::held_bytes() of kv_method.h.
  virtual std::uint64_t held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context) const = 0;

  // rows: [T, Hkv, d] FP32 in the basis of the cache, the tokens from position 0 on; on the CPU, or, unless
  // row_by_row(), on a GPU, where variances are not asked for. NumericalError when a row is not finite.
  virtual CodedRows code(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows,
                         bool with_variance) const = 0;
  // Each row is coded on its own by KvMethod::codec(), as the kernels that write pages do on a GPU.
  virtual bool row_by_row() const = 0;
  virtual KeyErrors key_errors() const { return KeyErrors::kTold; }
  // Queries [T, Hq, d] FP32 in the basis in which the channels of keys have the variances of code().
  virtual at::Tensor code_basis(std::int64_t /*layer*/, const at::Tensor& q) const { return q; }

  // Why the paged cache has no pages for the codes: what follows the method's name; empty when it has.
  virtual std::string no_pages() const = 0;
  // Pages of each side and layer, without windows; nothing where no_pages() says why. InputError for a layout that the
  // head size cannot carry.
  virtual std::optional<KvCacheSpec> pages(const KvMethod& method, const ModelConfig& model) const = 0;
};

}  // namespace oscar
