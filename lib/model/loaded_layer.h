// A layer's weights that one thread loads to a GPU on its own stream, for use on another stream.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "checkpoint/families/family.h"
#include "model/decoder.h"

namespace oscar {

struct LoadedLayer {
  LayerWeights weights;
  c10::Event ready{c10::DeviceType::CUDA};  // recorded after the copies
};

// A stream of the device for loading.
c10::Stream loading_stream(at::Device device);
// load_layer_weights() on that stream.
LoadedLayer load_layer_on(const c10::Stream& stream, const Checkpoint& checkpoint, const Family& family,
                          std::int64_t layer, const DecoderOptions& options);
// Returns the weights, ready for the current stream.
LayerWeights take_loaded(LoadedLayer loaded, at::Device device);

}  // namespace oscar
