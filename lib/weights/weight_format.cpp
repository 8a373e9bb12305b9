#include "weights/weight_format.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "weights/tensor_view.h"

namespace oscar {
namespace {

std::string directory_of(const WeightQuery& query) { return query.checkpoint.location().directory.string(); }

}  // namespace

std::string weight_shape_text(const WeightShape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string WeightQuery::module() const {
  constexpr std::string_view kEnd = ".weight";
  return name.ends_with(kEnd) ? name.substr(0, name.size() - kEnd.size()) : name;
}

const TensorView* WeightQuery::find(const std::string& suffix) const { return checkpoint.find(module() + suffix); }

const TensorView& WeightQuery::need(const std::string& suffix) const {
  const TensorView* part = find(suffix);
  if (part != nullptr) return *part;
  throw InputError("The tensor " + module() + suffix + " is missing from " + directory_of(*this) + "; " + text() +
                   " is stored quantized and cannot be read without it.");
}

StoredWeight WeightQuery::start(const WeightFormat& format, const TensorView& codes) const {
  return {.name = name, .shape = shape, .format = &format, .codes = &codes, .where = directory_of(*this)};
}

std::string WeightQuery::text() const { return "the weight " + name + " " + weight_shape_text(shape); }

void require_shape(const WeightQuery& query, const TensorView& part, const WeightShape& expected) {
  if (part.shape == expected) return;
  throw InputError("The tensor " + part.name + " of " + directory_of(query) + " has shape " + part.shape_text() +
                   ", expected " + weight_shape_text(expected) + " for " + query.text() + ".");
}

void require_type(const WeightQuery& query, const TensorView& part, std::initializer_list<DType> expected) {
  if (std::find(expected.begin(), expected.end(), part.dtype) != expected.end()) return;
  std::string names;
  for (const DType dtype : expected) names += (names.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  throw InputError("The tensor " + part.name + " of " + directory_of(query) + " has dtype " + part.type_text() +
                   ", expected " + names + " for " + query.text() + ".");
}

void refuse_part(const StoredWeight& weight, const TensorView& part, const std::string& fault) {
  throw InputError("The tensor " + part.name + " of " + weight.where + " " + fault + ", so the weight " + weight.name +
                   " cannot be read; the checkpoint is damaged, fetch it again.");
}

void require_multiple(const WeightQuery& query, std::int64_t columns, std::int64_t size) {
  if (columns % size == 0) return;
  throw InputError("The checkpoint " + directory_of(query) + " stores " + query.text() + " in groups of " +
                   std::to_string(size) + " columns, but its " + std::to_string(columns) +
                   " columns are no multiple of that.");
}

std::int64_t even_groups(const TensorView& scale, std::int64_t columns) {
  const std::int64_t groups = scale.shape.empty() ? 0 : scale.shape[0];
  return groups > 0 && columns % groups == 0 ? groups : 1;
}

at::Tensor column_groups(const StoredWeight& weight, std::int64_t count) {
  if (weight.groups == nullptr) return {};
  const at::Tensor groups = to_tensor(*weight.groups, at::kLong);
  const std::int64_t columns = groups.numel();
  if (at::eq(groups, -1).all().item<bool>() && count > 0 && columns % count == 0) return {};
  if (groups.min().item<std::int64_t>() < 0 || groups.max().item<std::int64_t>() >= count) {
    refuse_part(weight, *weight.groups,
                "names a group that is not among the " + std::to_string(count) + " that there are");
  }
  return groups;
}

WeightLayout plain_layout(const StoredWeight& weight, WeightCode code) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : weight.shape) elements *= extent;
  WeightLayout layout{.code = code, .rows = weight.shape.front(), .columns = 1};
  if (weight.shape.size() > 1) {
    layout.columns = std::max<std::int64_t>(weight.shape.back(), 1);
    layout.rows = elements / layout.columns;
  }
  layout.block_columns = layout.columns;
  // A scale covers all rows, or one entry of the first dimension.
  const std::int64_t scales = weight.scale->elements() == 1 ? 1 : weight.shape.front();
  layout.block_rows = std::max<std::int64_t>(layout.rows / std::max<std::int64_t>(scales, 1), 1);
  return layout;
}

at::Tensor finite_scale(const StoredWeight& weight, const TensorView& part) {
  const at::Tensor scale = stored_tensor(part, at::kCPU).to(at::kFloat);
  if (!at::isfinite(scale).all().item<bool>()) refuse_part(weight, part, "holds a scale that is NaN or infinite");
  return scale;
}

}  // namespace oscar
