// Dequantizes a stored weight on the GPU that uses it. The stored bytes cross the bus, and a kernel (kernels/weights)
// computes the weight. Builds with and without CUDA have separate source files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "weights/stored_weight.h"

namespace oscar {

enum class WeightCode { kE4M3, kInteger8, kE2M1, kUnsigned4, kUnsigned8, kAwq, kGptq4, kGptq8 };

// Describes the tensors of a StoredWeight to the kernels; the numbers were checked.
struct WeightLayout {
  WeightCode code = WeightCode::kE4M3;
  std::int64_t rows = 0, columns = 0;  // shape of the codes as a matrix; for AWQ and GPTQ, shape of the weight
  std::int64_t column_groups = 1;      // scales per row
  std::int64_t block_rows = 1;         // rows and columns per scale
  std::int64_t block_columns = 1;
  bool has_groups = false;    // the group of each column is in StoredWeight::groups
  bool second_scale = false;  // StoredWeight::second is one number for all scales, not zero points:
  float factor = 1.0f;        // that number
  bool divides = false;       // divide scales by it instead of multiplying
};

// The layout of codes in the weight's shape. One scale applies to a row, to a block or, if there is only one, to
// everything.
WeightLayout plain_layout(const StoredWeight& weight, WeightCode code);

// [rows, columns] of FP32, BF16 or F16 on a GPU, bit for bit equal to WeightFormat::dequantize. EnvironmentError if the
// kernel fails or this build has none.
at::Tensor dequantize_on_device(const StoredWeight& weight, const WeightLayout& layout, at::ScalarType dtype,
                                at::Device device);

}  // namespace oscar
