// Finds the stored tensors of a weight and loads the weight, for plain and quantized checkpoints. A format is
// recognized only by names, types and shapes of tensors; docs/families.md lists the formats.
//
// A weight is dequantized on the device that uses it, so quantized bytes cross the bus. The CPU uses ATen operations, a
// GPU a kernel (device_weight.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace oscar {

struct WeightFormat;

// The stored tensors of one weight, checked for consistency. Views point into the checkpoint.
struct StoredWeight {
  std::string name;                                // the weight's name: "model.layers.0.mlp.up_proj.weight"
  std::vector<std::int64_t> shape;                 // the weight's shape; linear weights are [N, K], [out, in]
  const WeightFormat* format = nullptr;            // nullptr: `codes` is the weight itself
  const TensorView* codes = nullptr;               // quantized numbers
  const TensorView* scale = nullptr;               // per element, row, block or group
  const TensorView* second = nullptr;              // scale of scales (NVFP4) or zero points (integers); nullptr: none
  const TensorView* groups = nullptr;              // group index of each column (integers); nullptr: columns in order
  const TensorView* shape_info = nullptr;          // the weight's shape, if stored
  const TensorView* input_factors = nullptr;       // [K], factors of the layer's input (AWQ in modelopt's files)
  std::int64_t bits = 0;                           // of integer codes
  std::int64_t block_rows = 0, block_columns = 0;  // for FP8 in blocks
  std::int64_t zero_point_offset = 0;              // added to stored zero points
  bool turned = false;                             // codes are stored transposed: [E, N, K] for a weight [E, K, N]
  std::string where;                               // the checkpoint, for messages

  bool is_plain() const { return format == nullptr && input_factors == nullptr; }  // one tensor, stored directly
  std::vector<const TensorView*> parts() const;  // all stored tensors, without nullptr
  const char* format_name() const;               // "BF16", "FP8", "MXFP4"
};

// Whether the checkpoint has quantized tensors for weight `name`. Checks only their names.
bool has_quantized_parts(const Checkpoint& checkpoint, const std::string& name);
// Whether the checkpoint has the tensor `name` or its quantized tensors.
bool stores_weight(const Checkpoint& checkpoint, const std::string& name);

// InputError if tensors are missing, do not fit `shape`, have a type that the format does not allow, or belong to an
// unsupported format. Reads no data except stored shapes.
StoredWeight find_weight(const Checkpoint& checkpoint, const std::string& name, const std::vector<std::int64_t>& shape);

// The weight, [shape]: codes times scales in FP32, then rounded once to `dtype`, to nearest even. Input factors are
// multiplied into the columns before that rounding: (x f) W^T = x (W diag f)^T. InputError if a scale or factor is not
// finite, or a column names a missing group.
at::Tensor load_weight(const StoredWeight& weight, at::ScalarType dtype, at::Device device = at::kCPU);

}  // namespace oscar
