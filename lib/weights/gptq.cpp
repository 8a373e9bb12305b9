// GPTQ (Frantar et al. 2022): 4- or 8-bit integers, stored as [in, out] and packed along [in], for X.weight [N, K]:
//   X.qweight I32 [K bits / 32, N], X.qzeros I32 [G, N bits / 32], X.scales [G, N], X.g_idx I32 [K]
//   w[n, k] = (code[k, n] - zero[g, n]) scale[g, n], g = g_idx[k], or without g_idx k / (K / G)
// The lowest bits of a word come first. The stored zero point is one less than the zero point, unless config.json says
// "checkpoint_format": "gptq_v2".
#include <ATen/ATen.h>

#include <algorithm>

#include "weights/tensor_view.h"
#include "weights/unpacked_codes.h"
#include "weights/weight_format.h"

namespace oscar {

extern const WeightFormat kGptq;

namespace {

std::optional<StoredWeight> find_gptq(const WeightQuery& query) {
  const TensorView* codes = query.find(".qweight");
  if (codes == nullptr || query.shape.size() != 2) return std::nullopt;
  const std::int64_t rows = query.shape[0], columns = query.shape[1];
  StoredWeight weight = query.start(kGptq, *codes);
  require_type(query, *codes, {DType::kI32});
  weight.bits = codes->shape == WeightShape{packed_words(columns, 8), rows} ? 8 : 4;
  require_shape(query, *codes, {packed_words(columns, weight.bits), rows});
  weight.zero_point_offset = query.checkpoint.config().weights.zero_point_offset;
  weight.scale = &query.need(".scales");
  require_type(query, *weight.scale, {DType::kF32, DType::kBF16, DType::kF16});
  // "desc_act": without the list, columns would be taken for those of other groups.
  weight.groups = query.checkpoint.config().weights.act_order ? &query.need(".g_idx") : query.find(".g_idx");
  if (weight.groups != nullptr) {
    require_type(query, *weight.groups, {DType::kI32, DType::kI64});
    require_shape(query, *weight.groups, {columns});
  }
  const std::int64_t groups = weight.groups != nullptr && !weight.scale->shape.empty()
                                  ? weight.scale->shape[0]
                                  : even_groups(*weight.scale, columns);
  require_shape(query, *weight.scale, {groups, rows});
  weight.second = &query.need(".qzeros");
  require_type(query, *weight.second, {DType::kI32});
  require_shape(query, *weight.second, {groups, packed_words(rows, weight.bits)});
  return weight;
}

at::Tensor dequantize_gptq(const StoredWeight& weight, at::ScalarType dtype) {
  const std::int64_t rows = weight.shape[0], columns = weight.shape[1];
  const at::Tensor scale = finite_scale(weight, *weight.scale).t();  // [N, G]
  const at::Tensor zeros =
      unpacked_integers(stored_tensor(*weight.second, at::kCPU), weight.bits).narrow(1, 0, rows).t();
  const at::Tensor words = stored_tensor(*weight.codes, at::kCPU).t();  // [N, words of the columns]
  const at::Tensor codes = unpacked_integers(words, weight.bits).narrow(1, 0, columns).contiguous();
  const at::Tensor groups = column_groups(weight, scale.size(1));
  return scaled_groups(codes, zeros + weight.zero_point_offset, scale, groups).to(dtype);
}

WeightLayout layout_gptq(const StoredWeight& weight) {
  finite_scale(weight, *weight.scale);
  const std::int64_t groups = weight.scale->shape[0];
  const bool listed = column_groups(weight, groups).defined();
  return {.code = weight.bits == 8 ? WeightCode::kGptq8 : WeightCode::kGptq4,
          .rows = weight.shape[0],
          .columns = weight.shape[1],
          .column_groups = groups,
          .block_columns = std::max<std::int64_t>(weight.shape[1] / std::max<std::int64_t>(groups, 1), 1),
          .has_groups = listed};
}

}  // namespace

const WeightFormat kGptq = {"GPTQ", find_gptq, dequantize_gptq, layout_gptq};

}  // namespace oscar
