// 4- or 8-bit integers as compressed-tensors packs them ("pack-quantized"), for X.weight [N, K]:
//   X.weight_packed      I32 [N, ceil(K bits / 32)], codes of 0 to 2^bits - 1, lowest bits of a word first
//   X.weight_scale       [N, G], one per row and group of K / G columns; G = 1: channels
//   X.weight_shape       I64 or I32 [2]: N, K
//   X.weight_zero_point  I32 [ceil(N bits / 32), G], packed along the rows; if absent, every zero point is 2^(bits - 1)
//   X.weight_g_idx       I32 [K], the group of each column (activation order); -1 everywhere: columns in order
//   w[n, k] = (code[n, k] - zero[n, group of k]) scale[n, group of k]
#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "weights/tensor_view.h"
#include "weights/unpacked_codes.h"
#include "weights/weight_format.h"

namespace oscar {

extern const WeightFormat kPackedIntegers;

namespace {

void check_stored_shape(const WeightQuery& query, const StoredWeight& weight) {
  const TensorView& part = *weight.shape_info;
  require_type(query, part, {DType::kI64, DType::kI32});
  require_shape(query, part, {2});
  const at::Tensor shape = to_tensor(part, at::kLong);
  const WeightShape found = {shape[0].item<std::int64_t>(), shape[1].item<std::int64_t>()};
  if (found == query.shape) return;
  throw InputError("The tensor " + part.name + " of " + weight.where + " says " + weight_shape_text(found) +
                   ", but config.json implies " + weight_shape_text(query.shape) + " for " + query.text() + ".");
}

std::optional<StoredWeight> find_packed(const WeightQuery& query) {
  const TensorView* packed = query.find(".weight_packed");
  if (packed == nullptr || packed->dtype != DType::kI32 || query.shape.size() != 2) return std::nullopt;
  const std::int64_t rows = query.shape[0], columns = query.shape[1];
  StoredWeight weight = query.start(kPackedIntegers, *packed);
  weight.shape_info = &query.need(".weight_shape");
  check_stored_shape(query, weight);
  // The width of the packed tensor distinguishes 4 from 8 bits.
  weight.bits = packed->shape == WeightShape{rows, packed_words(columns, 8)} ? 8 : 4;
  require_shape(query, *packed, {rows, packed_words(columns, weight.bits)});
  weight.scale = &query.need(".weight_scale");
  require_type(query, *weight.scale, {DType::kF32, DType::kBF16, DType::kF16});
  const std::int64_t groups = weight.scale->shape.size() == 2 ? std::max<std::int64_t>(weight.scale->shape[1], 1) : 1;
  weight.groups = query.find(".weight_g_idx");
  // Without a list of groups, all groups have equal size. If that is impossible, one scale per row is expected.
  const bool even = weight.groups != nullptr || columns % groups == 0;
  require_shape(query, *weight.scale, {rows, even ? groups : 1});
  if (weight.groups != nullptr) {
    require_type(query, *weight.groups, {DType::kI32, DType::kI64});
    require_shape(query, *weight.groups, {columns});
  }
  weight.second = query.find(".weight_zero_point");
  if (weight.second != nullptr) {
    require_type(query, *weight.second, {DType::kI32});
    require_shape(query, *weight.second, {packed_words(rows, weight.bits), groups});
  }
  return weight;
}

at::Tensor dequantize_packed(const StoredWeight& weight, at::ScalarType dtype) {
  const std::int64_t rows = weight.shape[0], columns = weight.shape[1];
  const at::Tensor scale = finite_scale(weight, *weight.scale);
  at::Tensor zeros = at::full({}, static_cast<double>(std::int64_t{1} << (weight.bits - 1)), scale.options());
  if (weight.second != nullptr) {
    const at::Tensor packed = stored_tensor(*weight.second, at::kCPU).t();  // [G, words of the rows]
    zeros = unpacked_integers(packed, weight.bits).narrow(1, 0, rows).t();
  }
  const at::Tensor codes = unpacked_integers(stored_tensor(*weight.codes, at::kCPU), weight.bits);
  const at::Tensor groups = column_groups(weight, scale.size(1));
  return scaled_groups(codes.narrow(1, 0, columns).contiguous(), zeros, scale, groups).to(dtype);
}

WeightLayout layout_packed(const StoredWeight& weight) {
  finite_scale(weight, *weight.scale);
  const std::int64_t groups = weight.scale->shape[1];
  const bool listed = column_groups(weight, groups).defined();
  return {.code = weight.bits == 8 ? WeightCode::kUnsigned8 : WeightCode::kUnsigned4,
          .rows = weight.shape[0],
          .columns = weight.shape[1],
          .column_groups = groups,
          .block_columns = std::max<std::int64_t>(weight.shape[1] / groups, 1),
          .has_groups = listed};
}

}  // namespace

const WeightFormat kPackedIntegers = {"INT4/INT8", find_packed, dequantize_packed, layout_packed};

}  // namespace oscar
