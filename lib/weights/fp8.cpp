// FP8 E4M3 with a scale for the tensor, per row, or per 128 x 128 block. E4M3 has no infinity, its NaN is S.1111.111,
// and its maximum is 448 (Micikevicius et al. 2022, "FP8 formats for deep learning"). INT8 may have the same scales of
// tensor or rows.
//   w[n, k] = code[n, k] scale[n / block rows, k / block columns]
// Stored as X.weight with X.weight_scale_inv (DeepSeek, Qwen: also multiplied) or X.weight_scale (compressed-tensors,
// modelopt). The scale's shape selects the case:
//   [], [1] or [1, 1]: tensor; [N] or [N, 1]: rows; [ceil(N / block rows), ceil(K / block columns)]: blocks.
// MXFP8 (OCP Microscaling Formats 1.0) has the same codes, with one scale 2^(byte - 127) for 32 codes of a row. Its
// scales are stored as U8 or F8_E8M0 [N, K / 32]. Blocks of other sizes may also have such scales.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "weights/tensor_view.h"
#include "weights/unpacked_codes.h"
#include "weights/weight_format.h"

namespace oscar {

extern const WeightFormat kFp8;

namespace {

constexpr std::int64_t kMxfp8Group = 32;  // codes per MXFP8 scale

bool is_power(const TensorView& scale) { return scale.dtype == DType::kU8 || scale.dtype == DType::kF8E8M0; }

std::int64_t blocks(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

bool scales_tensor(const TensorView& scale) { return scale.elements() == 1; }

bool scales_rows(const TensorView& scale, std::int64_t rows) {
  return scale.shape == WeightShape{rows} || scale.shape == WeightShape{rows, 1};
}

const TensorView& the_scale(const WeightQuery& query) {
  const TensorView* inverse = query.find(".weight_scale_inv");
  const TensorView* scale = query.find(".weight_scale");
  if (inverse != nullptr && scale != nullptr) {
    throw InputError("The checkpoint " + query.checkpoint.location().directory.string() + " holds both " +
                     inverse->name + " and " + scale->name + " for " + query.text() + "; expected one of them.");
  }
  return inverse != nullptr ? *inverse : query.need(".weight_scale");
}

std::optional<StoredWeight> find_fp8(const WeightQuery& query) {
  const TensorView* codes = query.checkpoint.find(query.name);
  if (codes == nullptr || (codes->dtype != DType::kF8E4M3 && codes->dtype != DType::kI8)) return std::nullopt;
  require_shape(query, *codes, query.shape);
  StoredWeight weight = query.start(kFp8, *codes);
  weight.scale = &the_scale(query);
  const bool powers = is_power(*weight.scale);
  if (codes->dtype == DType::kF8E4M3) {
    require_type(query, *weight.scale, {DType::kF32, DType::kBF16, DType::kF16, DType::kU8, DType::kF8E8M0});
  } else {
    require_type(query, *weight.scale, {DType::kF32, DType::kBF16, DType::kF16});
  }
  if (const TensorView* zero = query.find(".weight_zero_point"); zero != nullptr) {
    throw InputError("The checkpoint " + weight.where + " holds " + zero->name + " for " + query.text() +
                     ", and zero points of weights in 8 bits are read only where those are packed.");
  }
  const bool micro = powers && query.shape.size() == 2 && query.shape[1] % kMxfp8Group == 0 &&
                     weight.scale->shape == WeightShape{query.shape[0], query.shape[1] / kMxfp8Group};
  if (micro) {
    weight.block_rows = 1, weight.block_columns = kMxfp8Group;
    return weight;
  }
  if (scales_tensor(*weight.scale) || scales_rows(*weight.scale, query.shape.at(0))) return weight;
  const WeightConfig& config = query.checkpoint.config().weights;
  weight.block_rows = config.block_rows, weight.block_columns = config.block_columns;
  const WeightShape expected = {blocks(query.shape.at(0), weight.block_rows),
                                query.shape.size() == 2 ? blocks(query.shape[1], weight.block_columns) : 1};
  if (query.shape.size() != 2 || weight.scale->shape != expected) {
    throw InputError("The tensor " + weight.scale->name + " of " + weight.where + " has shape " +
                     weight.scale->shape_text() + ", expected [1], [" + std::to_string(query.shape[0]) + "], [" +
                     std::to_string(query.shape[0]) + ", 1] or, in blocks of " + std::to_string(weight.block_rows) +
                     " x " + std::to_string(weight.block_columns) + ", " + weight_shape_text(expected) + " for " +
                     query.text() + ".");
  }
  return weight;
}

// values [N, K] *= scale of their block, in place. Scales rows of complete blocks at once, then rows of the partial
// block.
void scale_blocks(const StoredWeight& weight, at::Tensor values, const at::Tensor& scale) {
  const std::int64_t rows = weight.shape[0], columns = weight.shape[1], block = weight.block_rows;
  const at::Tensor wide = scale.repeat_interleave(std::min(weight.block_columns, columns), 1).narrow(1, 0, columns);
  const std::int64_t whole = rows / block;
  if (whole > 0) {
    values.narrow(0, 0, whole * block).view({whole, block, columns}).mul_(wide.narrow(0, 0, whole).unsqueeze(1));
  }
  if (rows > whole * block) values.narrow(0, whole * block, rows - whole * block).mul_(wide.narrow(0, whole, 1));
}

// Scales as FP32 in their stored shape.
at::Tensor finite_fp8_scale(const StoredWeight& weight) {
  if (!is_power(*weight.scale)) return finite_scale(weight, *weight.scale);
  const at::Tensor stored = stored_tensor(*weight.scale, at::kCPU).view(at::kByte);
  if (at::eq(stored, 255).any().item<bool>()) refuse_part(weight, *weight.scale, "holds a scale that is NaN");
  return e8m0_scales(stored);
}

at::Tensor dequantize_fp8(const StoredWeight& weight, at::ScalarType dtype) {
  const at::Tensor scale = finite_fp8_scale(weight);
  at::Tensor values = stored_tensor(*weight.codes, at::kCPU).to(at::kFloat);
  if (scale.numel() == 1) {
    values.mul_(scale.reshape({}));
  } else if (weight.block_rows == 0) {
    WeightShape rows(weight.shape.size(), 1);
    rows[0] = weight.shape[0];
    values.mul_(scale.view(rows));
  } else {
    scale_blocks(weight, values, scale);
  }
  return values.to(dtype);
}

WeightLayout layout_fp8(const StoredWeight& weight) {
  finite_fp8_scale(weight);
  WeightLayout layout =
      plain_layout(weight, weight.codes->dtype == DType::kI8 ? WeightCode::kInteger8 : WeightCode::kE4M3);
  if (weight.block_rows > 0) {
    layout.block_rows = std::min(weight.block_rows, layout.rows);
    layout.block_columns = std::min(weight.block_columns, layout.columns);
    layout.column_groups = weight.scale->shape[1];
  }
  return layout;
}

}  // namespace

const WeightFormat kFp8 = {"FP8", find_fp8, dequantize_fp8, layout_fp8};

}  // namespace oscar
