#include "weights/device_weight.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <limits>
#include <stdexcept>

#include "base/cuda/launch.h"
#include "kernels/weights/column_codes.h"
#include "kernels/weights/row_codes.h"
#include "weights/tensor_view.h"

namespace oscar {
namespace {

kernels::WeightType weight_type(at::ScalarType dtype) {
  if (dtype == at::kFloat) return kernels::WeightType::kFloat32;
  if (dtype == at::kBFloat16) return kernels::WeightType::kBFloat16;
  if (dtype == at::kHalf) return kernels::WeightType::kFloat16;
  throw std::logic_error("weights are dequantized to FP32, BF16 or F16");
}

kernels::ScaleType scale_type(DType dtype) {
  if (dtype == DType::kF32) return kernels::ScaleType::kFloat32;
  if (dtype == DType::kBF16) return kernels::ScaleType::kBFloat16;
  if (dtype == DType::kF16) return kernels::ScaleType::kFloat16;
  if (dtype == DType::kF8E4M3) return kernels::ScaleType::kE4M3;
  if (dtype == DType::kU8 || dtype == DType::kF8E8M0) return kernels::ScaleType::kE8M0;
  throw std::logic_error("no format has scales of this type");
}

kernels::RowCode row_code(WeightCode code) {
  if (code == WeightCode::kE4M3) return kernels::RowCode::kE4M3;
  if (code == WeightCode::kInteger8) return kernels::RowCode::kInteger8;
  if (code == WeightCode::kE2M1) return kernels::RowCode::kE2M1;
  return code == WeightCode::kUnsigned4 ? kernels::RowCode::kUnsigned4 : kernels::RowCode::kUnsigned8;
}

// The stored tensors of a weight on the GPU; absent ones are undefined.
struct Parts {
  at::Tensor codes, scale, zeros, groups;

  Parts(const StoredWeight& weight, const WeightLayout& layout, at::Device device)
      : codes(stored_tensor(*weight.codes, device)), scale(stored_tensor(*weight.scale, device)) {
    if (weight.second != nullptr && !layout.second_scale) zeros = stored_tensor(*weight.second, device);
    if (layout.has_groups) groups = to_tensor(*weight.groups, at::kInt, device);
  }
};

template <class T>
const T* data(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

bool by_columns(WeightCode code) {
  return code == WeightCode::kAwq || code == WeightCode::kGptq4 || code == WeightCode::kGptq8;
}

kernels::ColumnCodesParams column_params(const StoredWeight& weight, const WeightLayout& layout, const Parts& parts) {
  kernels::ColumnCodesParams p{.codes = data<std::uint32_t>(parts.codes),
                               .zeros = data<std::uint32_t>(parts.zeros),
                               .scale = data<void>(parts.scale),
                               .groups = data<std::int32_t>(parts.groups)};
  p.rows = static_cast<std::int32_t>(layout.rows), p.columns = static_cast<std::int32_t>(layout.columns);
  p.block_columns = static_cast<std::int32_t>(layout.block_columns);
  p.zero_offset = static_cast<std::int32_t>(weight.zero_point_offset);
  p.code = layout.code == WeightCode::kAwq     ? kernels::ColumnCode::kAwq
           : layout.code == WeightCode::kGptq4 ? kernels::ColumnCode::kGptq4
                                               : kernels::ColumnCode::kGptq8;
  p.scale_type = scale_type(weight.scale->dtype);
  return p;
}

kernels::RowCodesParams row_params(const StoredWeight& weight, const WeightLayout& layout, const Parts& parts) {
  kernels::RowCodesParams p{.codes = data<std::uint8_t>(parts.codes),
                            .scale = data<void>(parts.scale),
                            .zeros = data<std::int32_t>(parts.zeros),
                            .groups = data<std::int32_t>(parts.groups),
                            .row_bytes = static_cast<std::int64_t>(weight.codes->data.size()) / layout.rows};
  p.rows = static_cast<std::int32_t>(layout.rows), p.columns = static_cast<std::int32_t>(layout.columns);
  p.column_groups = static_cast<std::int32_t>(layout.column_groups);
  p.block_rows = static_cast<std::int32_t>(layout.block_rows);
  p.block_columns = static_cast<std::int32_t>(layout.block_columns);
  p.code = row_code(layout.code);
  p.scale_type = scale_type(weight.scale->dtype);
  p.second = !layout.second_scale ? kernels::SecondScale::kNone
             : layout.divides     ? kernels::SecondScale::kDivides
                                  : kernels::SecondScale::kMultiplies;
  p.second_scale = layout.factor;
  return p;
}

}  // namespace

at::Tensor dequantize_on_device(const StoredWeight& weight, const WeightLayout& layout, at::ScalarType dtype,
                                at::Device device) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (layout.rows > kMost || layout.columns > kMost) throw std::logic_error("a weight of more than 2^31 rows");
  const c10::DeviceGuard guard(device);
  const cudaStream_t stream = current_stream();
  const kernels::WeightType type = weight_type(dtype);
  const at::Tensor out = at::empty({layout.rows, layout.columns}, at::TensorOptions(dtype).device(device));
  if (out.numel() == 0) return out;
  const Parts parts(weight, layout, device);
  const std::string what = "dequantizing the weight " + weight.name;
  if (by_columns(layout.code)) {
    kernels::ColumnCodesParams p = column_params(weight, layout, parts);
    p.weight = out.mutable_data_ptr(), p.weight_type = type;
    check_launch(kernels::dequantize_column_codes(p, stream), what.c_str());
  } else {
    kernels::RowCodesParams p = row_params(weight, layout, parts);
    p.weight = out.mutable_data_ptr(), p.weight_type = type;
    check_launch(kernels::dequantize_row_codes(p, stream), what.c_str());
  }
  return out;
}

}  // namespace oscar
