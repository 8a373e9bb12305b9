// Which stored tensors make a weight, and the weight itself: one place for plain and quantized checkpoints. A format is
// recognized by the names, types and shapes of tensors alone; docs/families.md has the table of formats.
//
// A weight is dequantized on the device that uses it, so that quantized bytes are what crosses the bus: by ATen
// operations on the CPU, by a kernel on a GPU (device_weight.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace oscar {

struct WeightFormat;

// The stored tensors of one weight, checked against each other. Views point into the checkpoint.
struct StoredWeight {
  std::string name;                                // of the weight: "model.layers.0.mlp.up_proj.weight"
  std::vector<std::int64_t> shape;                 // of the weight; linear weights are [N, K], [out, in]
  const WeightFormat* format = nullptr;            // nullptr: `codes` is the weight itself
  const TensorView* codes = nullptr;               // the quantized numbers
  const TensorView* scale = nullptr;               // of elements, rows, blocks or groups
  const TensorView* second = nullptr;              // scale of scales (NVFP4) or zero points (integers); nullptr: none
  const TensorView* groups = nullptr;              // group of each column (integers); nullptr: columns in order
  const TensorView* shape_info = nullptr;          // the weight's shape, where it is stored
  const TensorView* input_factors = nullptr;       // [K], multiply what the layer reads (AWQ in modelopt's files)
  std::int64_t bits = 0;                           // of an integer code
  std::int64_t block_rows = 0, block_columns = 0;  // FP8 in blocks
  std::int64_t zero_point_offset = 0;              // is added to stored zero points
  bool turned = false;                             // of [E, K, N] the codes are stored as [E, N, K]
  std::string where;                               // the checkpoint, for messages

  bool is_plain() const { return format == nullptr && input_factors == nullptr; }  // one tensor, as it is
  std::vector<const TensorView*> parts() const;  // all stored tensors, none of them nullptr
  const char* format_name() const;               // "BF16", "FP8", "MXFP4"
};

// Whether the checkpoint has quantized tensors that make `name`, told by their names alone.
bool has_quantized_parts(const Checkpoint& checkpoint, const std::string& name);
// Whether it has the tensor `name` or such tensors.
bool stores_weight(const Checkpoint& checkpoint, const std::string& name);

// InputError: tensors are missing, have another shape than `shape` needs, are not of a type that the format has, or
// belong to a format that is not read. Reads no data but stored shapes.
StoredWeight find_weight(const Checkpoint& checkpoint, const std::string& name, const std::vector<std::int64_t>& shape);

// The weight, [shape]: codes times scales in FP32, then rounded once, to nearest even, to `dtype`. Factors of the input
// are multiplied into its columns before that rounding: (x f) W^T = x (W diag f)^T. InputError where a scale or factor
// is not finite, or a column names a group that does not exist.
at::Tensor load_weight(const StoredWeight& weight, at::ScalarType dtype, at::Device device = at::kCPU);

}  // namespace oscar
