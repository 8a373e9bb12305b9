#include "model/loaded_layer.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "model/weights.h"

namespace oscar {

c10::Stream loading_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

LoadedLayer load_layer_on(const c10::Stream& stream, const Checkpoint& checkpoint, const Family& family,
                          std::int64_t layer, const DecoderOptions& options) {
  const c10::DeviceGuard device(options.device);
  const c10::StreamGuard current(stream);
  LoadedLayer loaded;
  loaded.weights = load_layer_weights(checkpoint, family, layer, options);
  loaded.ready.record(stream);
  return loaded;
}

LayerWeights take_loaded(LoadedLayer loaded, at::Device device) {
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  loaded.ready.block(current);
  // Allocated on the loading stream: their memory must not be reused before this stream has finished with them.
  for (at::Tensor LayerWeights::*const member : kLayerTensors) {
    if ((loaded.weights.*member).defined()) (loaded.weights.*member).record_stream(current);
  }
  return std::move(loaded.weights);
}

}  // namespace oscar
