// Sensitivities of allocators that run the model and quantise whole layers (rotation/allocators.h): everything but one
// layer has an exact cache, and each side of that layer one width.
#pragma once

#include <cstdint>
#include <vector>

#include "bundle/bundle.h"
#include "curves/curve_passes.h"
#include "rotation/allocators.h"

namespace oscar {

// Calibration text, and the cache that a bundle's transforms and these windows make.
struct SensitivityRequest {
  std::vector<std::vector<std::int32_t>> sequences;  // of equal length
  CacheWindows windows;
};

// A cache whose keys have width `key` and whose values have width `value` in every layer and block.
KvMethod whole_width_method(const Bundle& bundle, const ModelConfig& model, const CacheWindows& windows,
                            std::uint8_t key, std::uint8_t value);

// Model-Optimizer: mean KL over the full vocabulary with keys and values of a layer at kWholeWidths[i] and all others
// exact. [layers][4], nats; the rounding of activations is in all of them. InterruptedError on SIGINT; NumericalError.
Sensitivities tied_layer_kl(Decoder& decoder, const Bundle& bundle, const SensitivityRequest& request);

// KVTuner: |O' - O| / |O| of a layer's attention outputs O before W_O, mean over query heads and positions that read a
// quantised key, with keys at kWholeWidths[i / 4] and values at kWholeWidths[i % 4]; what enters the layer is exact.
// [layers][16]. InterruptedError on SIGINT; NumericalError.
Sensitivities pair_output_errors(Decoder& decoder, const Bundle& bundle, const SensitivityRequest& request);

}  // namespace oscar
