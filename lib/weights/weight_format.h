// One way of storing weights in fewer bits, and what the files of the formats share. Each format is one file beside
// this one, which ends in a WeightFormat; stored_weight.cpp lists them.
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

// What is asked for: the weight `name` of `shape`.
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
  // The weight's tensors, checked; nullopt where this format stores nothing under that name.
  std::optional<StoredWeight> (*find)(const WeightQuery& query);
  // On the CPU, and the reference of the kernels: codes times scales in FP32, then rounded to the type. InputError
  // where a scale is not finite, or a column names a group that does not exist.
  at::Tensor (*dequantize)(const StoredWeight& weight, at::ScalarType dtype);
  // For dequantize_on_device(): the same checks, without a look at the codes.
  WeightLayout (*layout)(const StoredWeight& weight);
};

// InputError naming tensor, weight, what was found and what was expected.
void require_shape(const WeightQuery& query, const TensorView& part, const WeightShape& expected);
void require_type(const WeightQuery& query, const TensorView& part, std::initializer_list<DType> expected);
[[noreturn]] void refuse_part(const StoredWeight& weight, const TensorView& part, const std::string& fault);

// Columns K that come in groups of `size`: InputError where K is no multiple of it.
void require_multiple(const WeightQuery& query, std::int64_t columns, std::int64_t size);
// Groups of a scale [G, N] over `columns` columns in order; 1 where they would not be even.
std::int64_t even_groups(const TensorView& scale, std::int64_t columns);
// weight.groups as int64 [K]; undefined where the columns are in order. InputError for a group that is not among
// `count`.
at::Tensor column_groups(const StoredWeight& weight, std::int64_t count);

// A stored scale as FP32, its shape as stored. InputError where one is NaN or infinite.
at::Tensor finite_scale(const StoredWeight& weight, const TensorView& part);

std::string weight_shape_text(const WeightShape& shape);

}  // namespace oscar
