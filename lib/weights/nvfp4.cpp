// NVFP4: E2M1 codes, one FP8 E4M3 scale per 16 codes, and one FP32 number for the tensor.
//   compressed-tensors ("nvfp4-pack-quantized"): X.weight_packed U8 [N, K / 2], X.weight_scale F8_E4M3 [N, K / 16],
//     X.weight_global_scale F32 [1]:   w[n, k] = code[n, k] (scale[n, k / 16] / global)
//   modelopt: X.weight U8 [N, K / 2], X.weight_scale F8_E4M3 [N, K / 16], X.weight_scale_2 F32 []:
//                                      w[n, k] = code[n, k] (scale[n, k / 16] scale_2)
#include <ATen/ATen.h>

#include "weights/tensor_view.h"
#include "weights/unpacked_codes.h"
#include "weights/weight_format.h"

namespace oscar {

extern const WeightFormat kNvfp4;

namespace {

constexpr std::int64_t kNvGroup = 16;  // codes per scale

bool divides(const StoredWeight& weight) { return weight.second->name.ends_with(".weight_global_scale"); }

std::optional<StoredWeight> find_nvfp4(const WeightQuery& query) {
  const TensorView* packed = query.find(".weight_packed");
  const bool divided = packed != nullptr;
  const TensorView* codes = divided ? packed : query.checkpoint.find(query.name);
  if (codes == nullptr || codes->dtype != DType::kU8 || query.shape.size() != 2) return std::nullopt;
  StoredWeight weight = query.start(kNvfp4, *codes);
  weight.scale = &query.need(".weight_scale");
  require_type(query, *weight.scale, {DType::kF8E4M3});
  require_multiple(query, query.shape[1], kNvGroup);
  require_shape(query, *codes, {query.shape[0], query.shape[1] / 2});
  require_shape(query, *weight.scale, {query.shape[0], query.shape[1] / kNvGroup});
  weight.second = &query.need(divided ? ".weight_global_scale" : ".weight_scale_2");
  require_type(query, *weight.second, {DType::kF32});
  if (!weight.second->shape.empty()) require_shape(query, *weight.second, {1});
  return weight;
}

// The number for the entire tensor, [].
at::Tensor whole_scale(const StoredWeight& weight) {
  const at::Tensor whole = finite_scale(weight, *weight.second).reshape({});
  if (divides(weight) && whole.item<float>() == 0.0f) refuse_part(weight, *weight.second, "is 0 and divides scales");
  return whole;
}

at::Tensor dequantize_nvfp4(const StoredWeight& weight, at::ScalarType dtype) {
  const at::Tensor whole = whole_scale(weight), own = finite_scale(weight, *weight.scale);
  const at::Tensor scale = divides(weight) ? own.div(whole) : own.mul(whole);
  const at::Tensor codes = unpacked_e2m1(stored_tensor(*weight.codes, at::kCPU));
  return scaled_groups(codes, at::zeros({}, scale.options()), scale).to(dtype);
}

WeightLayout layout_nvfp4(const StoredWeight& weight) {
  const float factor = whole_scale(weight).item<float>();
  finite_scale(weight, *weight.scale);
  return {.code = WeightCode::kE2M1,
          .rows = weight.shape[0],
          .columns = weight.shape[1],
          .column_groups = weight.shape[1] / kNvGroup,
          .block_columns = kNvGroup,
          .second_scale = true,
          .factor = factor,
          .divides = divides(weight)};
}

}  // namespace

const WeightFormat kNvfp4 = {"NVFP4", find_nvfp4, dequantize_nvfp4, layout_nvfp4};

}  // namespace oscar
