// What a method puts into a PagedCache: the codecs of its layers, and the rows of new tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/attention.h"
#include "runtime/method.h"
#include "runtime/paged_cache.h"

namespace oscar {

std::vector<LayerCacheSpec> layer_specs(const KvMethod& method, const ModelConfig& model);  // [layers]

// Keys or values of new tokens in the basis of the cache, [T, Hkv, d] BF16 on the CPU, contiguous.
at::Tensor new_key_rows(const KvMethod& method, const AttentionInput& input);
at::Tensor new_value_rows(const KvMethod& method, const AttentionInput& input);

}  // namespace oscar
