// A stored weight dequantized on the GPU that uses it: the bytes of its tensors cross the bus as they are stored, and a
// kernel (kernels/weights) makes the weight of them. A source file for builds with CUDA and one for those without.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "weights/stored_weight.h"

namespace oscar {

enum class WeightCode { kE4M3, kInteger8, kE2M1, kUnsigned4, kUnsigned8, kAwq, kGptq4, kGptq8 };

// How the kernels find their way in the tensors of a StoredWeight, whose numbers were checked.
struct WeightLayout {
  WeightCode code = WeightCode::kE4M3;
  std::int64_t rows = 0, columns = 0;  // of the codes as a matrix; AWQ and GPTQ: of the weight
  std::int64_t column_groups = 1;      // scales of a row
  std::int64_t block_rows = 1;         // rows and columns of one scale
  std::int64_t block_columns = 1;
  bool has_groups = false;    // the group of each column is in StoredWeight::groups
  bool second_scale = false;  // StoredWeight::second is one number beside all scales, not zero points:
  float factor = 1.0f;        // that number
  bool divides = false;       // scales are divided by it, not multiplied
};

// The layout of codes in the shape of the weight, whose scales are those of rows, blocks or, with one scale, all.
WeightLayout plain_layout(const StoredWeight& weight, WeightCode code);

// [rows, columns] of FP32, BF16 or F16 on a GPU: the same bits as WeightFormat::dequantize. EnvironmentError where the
// kernel fails, or where this build has none.
at::Tensor dequantize_on_device(const StoredWeight& weight, const WeightLayout& layout, at::ScalarType dtype,
                                at::Device device);

}  // namespace oscar
