// MXFP4 (OCP Microscaling Formats 1.0): E2M1 codes, with one E8M0 scale per 32 codes.
//   w[n, k] = code[n, k] 2^(scale[n, k / 32] - 127)
// gpt-oss stores experts as NAME_blocks [E, N, K / 32, 16] and NAME_scales [E, N, K / 32], both U8, for the weight NAME
// [E, K, N]. Columns of the weight are the rows that share scales.
// compressed-tensors ("mxfp4-pack-quantized") stores X.weight_packed [N, K / 2] and X.weight_scale [N, K / 32], both
// U8, for X.weight [N, K].
#include <ATen/ATen.h>

#include "weights/tensor_view.h"
#include "weights/unpacked_codes.h"
#include "weights/weight_format.h"

namespace oscar {

extern const WeightFormat kMxfp4;

namespace {

constexpr std::int64_t kMxGroup = 32;  // codes per scale

std::optional<StoredWeight> find_mxfp4(const WeightQuery& query) {
  const TensorView* blocks = query.checkpoint.find(query.name + "_blocks");
  if (blocks != nullptr && query.shape.size() == 3) {
    require_multiple(query, query.shape[1], kMxGroup);
    const std::int64_t experts = query.shape[0], rows = query.shape[2], groups = query.shape[1] / kMxGroup;
    StoredWeight weight = query.start(kMxfp4, *blocks);
    require_type(query, *blocks, {DType::kU8});
    require_shape(query, *blocks, {experts, rows, groups, kMxGroup / 2});
    weight.scale = &query.need("_scales");
    require_type(query, *weight.scale, {DType::kU8});
    require_shape(query, *weight.scale, {experts, rows, groups});
    weight.turned = true;
    return weight;
  }
  const TensorView* packed = query.find(".weight_packed");
  const TensorView* scale = query.find(".weight_scale");
  if (packed == nullptr || packed->dtype != DType::kU8 || scale == nullptr || scale->dtype != DType::kU8 ||
      query.shape.size() != 2) {
    return std::nullopt;
  }
  StoredWeight weight = query.start(kMxfp4, *packed);
  require_multiple(query, query.shape[1], kMxGroup);
  require_shape(query, *packed, {query.shape[0], query.shape[1] / 2});
  weight.scale = scale;
  require_shape(query, *scale, {query.shape[0], query.shape[1] / kMxGroup});
  return weight;
}

// bytes [N, K / 2], powers [N, K / 32] -> [N, K].
at::Tensor scaled(const at::Tensor& bytes, const at::Tensor& powers) {
  const at::Tensor zero = at::zeros({}, powers.options());
  return scaled_groups(unpacked_e2m1(bytes), zero, powers);
}

// The stored bytes of the scales.
at::Tensor finite_powers(const StoredWeight& weight) {
  const at::Tensor stored = stored_tensor(*weight.scale, at::kCPU);
  if (at::eq(stored, 255).any().item<bool>()) refuse_part(weight, *weight.scale, "holds a scale that is NaN");
  return stored;
}

at::Tensor dequantize_mxfp4(const StoredWeight& weight, at::ScalarType dtype) {
  const at::Tensor powers = e8m0_scales(finite_powers(weight)), bytes = stored_tensor(*weight.codes, at::kCPU);
  if (weight.shape.size() == 2) return scaled(bytes, powers).to(dtype);
  // One expert at a time: all of them in FP32 would need more memory than the layer.
  at::Tensor experts = at::empty({weight.shape[0], weight.shape[2], weight.shape[1]}, bytes.options().dtype(dtype));
  for (std::int64_t e = 0; e < weight.shape[0]; ++e) {
    experts.select(0, e).copy_(scaled(bytes.select(0, e).flatten(1), powers.select(0, e)));
  }
  return experts.transpose(1, 2);
}

WeightLayout layout_mxfp4(const StoredWeight& weight) {
  finite_powers(weight);
  const std::int64_t columns = weight.shape[1];  // the dimension that shares scales, in both shapes
  return {.code = WeightCode::kE2M1,
          .rows = weight.turned ? weight.shape[0] * weight.shape[2] : weight.shape[0],
          .columns = columns,
          .column_groups = columns / kMxGroup,
          .block_columns = kMxGroup};
}

}  // namespace

const WeightFormat kMxfp4 = {"MXFP4", find_mxfp4, dequantize_mxfp4, layout_mxfp4};

}  // namespace oscar
