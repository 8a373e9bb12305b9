// The interface of a quantized weight format, and functions that formats share. Each format is one file beside this one
// and ends in a WeightFormat; stored_weight.cpp lists them.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "weights/device_weight.h"
#include "weights/stored_weight.h"

namespace oscar {

using WeightShape = std::vector<std::int64_t>;

// A request for the weight `name` with `shape`.
struct WeightQuery {
  const Checkpoint& checkpoint;
  const std::string& name;
  const WeightShape& shape;

  std::string module() const;                               // the name without ".weight"
  const TensorView* find(const std::string& suffix) const;  // module() + suffix; nullptr when absent
  const TensorView& need(const std::string& suffix) const;  // InputError when absent
  StoredWeight start(const WeightFormat& format, const TensorView& codes) const;
  std::string text() const;  // "the weight <name> [200, 130]"
};

struct WeightFormat {
  const char* name;
  // The weight's tensors, checked; nullopt if this format stores nothing under that name.
  std::optional<StoredWeight> (*find)(const WeightQuery& query);
  // On the CPU, and the reference for the kernels: codes times scales in FP32, then rounded to the type. InputError if
  // a scale is not finite, or a column names a missing group.
  at::Tensor (*dequantize)(const StoredWeight& weight, at::ScalarType dtype);
  // For dequantize_on_device(): does the same checks without reading the codes.
  WeightLayout (*layout)(const StoredWeight& weight);
};

// InputError that names the tensor, the weight, what was found and what was expected.
void require_shape(const WeightQuery& query, const TensorView& part, const WeightShape& expected);
void require_type(const WeightQuery& query, const TensorView& part, std::initializer_list<DType> expected);
[[noreturn]] void refuse_part(const StoredWeight& weight, const TensorView& part, const std::string& fault);

// InputError unless the number of columns K is a multiple of `size`, the group size.
void require_multiple(const WeightQuery& query, std::int64_t columns, std::int64_t size);
// Groups of a scale [G, N] over `columns` columns in order; 1 if they would not be even.
std::int64_t even_groups(const TensorView& scale, std::int64_t columns);
// weight.groups as int64 [K]; undefined if the columns are in order. InputError for a group index not below `count`.
at::Tensor column_groups(const StoredWeight& weight, std::int64_t count);

// A stored scale as FP32 in its stored shape. InputError for NaN or infinity.
at::Tensor finite_scale(const StoredWeight& weight, const TensorView& part);

std::string weight_shape_text(const WeightShape& shape);

}  // namespace oscar
