// AWQ (Lin et al. 2023) in its GEMM layout: 4-bit integers, stored as [in, out], for X.weight [N, K]:
//   X.qweight I32 [K, N / 8], X.qzeros I32 [G, N / 8], X.scales [G, N]
//   w[n, k] = (code[k, n] - zero[k / (K / G), n]) scale[k / (K / G), n]
// The eight codes of a word are in column order 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first.
#include <ATen/ATen.h>

#include "weights/tensor_view.h"
#include "weights/unpacked_codes.h"
#include "weights/weight_format.h"

namespace oscar {

extern const WeightFormat kAwq;

namespace {

constexpr std::int64_t kAwqWord = 8;  // codes per word

std::optional<StoredWeight> find_awq(const WeightQuery& query) {
  const TensorView* codes = query.find(".qweight");
  if (codes == nullptr || query.shape.size() != 2) return std::nullopt;
  const std::int64_t rows = query.shape[0], columns = query.shape[1];
  if (codes->shape.size() != 2 || codes->shape[0] != columns) return std::nullopt;  // GPTQ packs along K
  StoredWeight weight = query.start(kAwq, *codes);
  require_type(query, *codes, {DType::kI32});
  require_shape(query, *codes, {columns, packed_words(rows, 4)});
  weight.scale = &query.need(".scales");
  require_type(query, *weight.scale, {DType::kF32, DType::kBF16, DType::kF16});
  const std::int64_t groups = even_groups(*weight.scale, columns);
  require_shape(query, *weight.scale, {groups, rows});
  weight.second = &query.need(".qzeros");
  require_type(query, *weight.second, {DType::kI32});
  require_shape(query, *weight.second, {groups, packed_words(rows, 4)});
  return weight;
}

// int32 [R, N / 8] -> FP32 [N, R].
at::Tensor awq_codes(const at::Tensor& words, std::int64_t rows) {
  // Column j of eight is at this place in its word.
  const at::Tensor place = at::tensor({0, 4, 1, 5, 2, 6, 3, 7}, words.options());
  const at::Tensor codes = unpacked_integers(words, 4).view({words.size(0), -1, kAwqWord}).index_select(2, place);
  return codes.flatten(1).narrow(1, 0, rows).t().contiguous();
}

at::Tensor dequantize_awq(const StoredWeight& weight, at::ScalarType dtype) {
  const at::Tensor scale = finite_scale(weight, *weight.scale).t();  // [N, G]
  const at::Tensor zeros = awq_codes(stored_tensor(*weight.second, at::kCPU), weight.shape[0]);
  const at::Tensor codes = awq_codes(stored_tensor(*weight.codes, at::kCPU), weight.shape[0]);
  return scaled_groups(codes, zeros, scale).to(dtype);
}

WeightLayout layout_awq(const StoredWeight& weight) {
  finite_scale(weight, *weight.scale);
  const std::int64_t groups = weight.scale->shape[0];
  return {.code = WeightCode::kAwq,
          .rows = weight.shape[0],
          .columns = weight.shape[1],
          .column_groups = groups,
          .block_columns = weight.shape[1] / groups};
}

}  // namespace

const WeightFormat kAwq = {"AWQ", find_awq, dequantize_awq, layout_awq};

}  // namespace oscar
