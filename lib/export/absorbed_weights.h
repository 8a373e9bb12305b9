// The tensors of one layer that absorb its value transform.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "rotation/transform.h"

namespace oscar {

struct NewTensor {
  std::string name;     // in the checkpoint
  std::string sibling;  // tensor whose shard it belongs to; for replaced tensors itself
  at::Tensor value;     // FP64
};

// Names of the stored tensors beside which a layer's new ones belong.
std::vector<std::string> absorbing_tensors(const Checkpoint& source, std::int64_t layer, bool new_biases);

// InputError where a value or output projection is stored quantised: the changed one would need another format than its
// neighbours, which engines load as one with it.
void refuse_quantised_values(const Checkpoint& source);

// new_biases: the architecture gets biases at q, k, v and o that it had not (zeros where nothing is absorbed).
std::vector<NewTensor> absorb_layer(const Checkpoint& source, const LayerTransform& layer, bool new_biases);

}  // namespace oscar
