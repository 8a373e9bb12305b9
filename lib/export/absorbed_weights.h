// The tensors of one layer that absorb its value transform.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "rotation/transform.h"
#include "weights/stored_weight.h"

namespace oscar {

struct NewTensor {
  std::string name;     // in the checkpoint
  std::string sibling;  // stored tensor whose shard it belongs to
  at::Tensor value;     // FP64
};

// A layer's projections that are written anew, or get a bias: v and o, q and k where they get biases, and each of q and
// k that is stored quantized. Engines load q, k and v as one tensor of one type, so that all three are plain then.
std::vector<StoredWeight> absorbing_weights(const Checkpoint& source, std::int64_t layer, bool new_biases);

// new_biases: the architecture gets biases at q, k, v and o that it had not (zeros where nothing is absorbed).
std::vector<NewTensor> absorb_layer(const Checkpoint& source, const LayerTransform& layer, bool new_biases);

}  // namespace oscar
