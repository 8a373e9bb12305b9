#include "model/resident_load.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "model/weights.h"

namespace oscar {

struct ResidentLoad::Loaded {
  LayerWeights weights;
  c10::Event ready{c10::DeviceType::CUDA};
};

ResidentLoad::ResidentLoad(const Checkpoint& checkpoint, const Family& family, const DecoderOptions& options)
    : device_(options.device), layers_(static_cast<std::size_t>(checkpoint.config().layers)) {
  const bool inference = c10::InferenceMode::is_enabled();  // else gradients may pass through the weights
  loading_ = std::async(std::launch::async, [this, &checkpoint, &family, options, inference] {
    const c10::InferenceMode mode(inference);
    const c10::DeviceGuard device(options.device);
    const c10::StreamGuard stream(
        c10::impl::VirtualGuardImpl(options.device.type()).getStreamFromGlobalPool(options.device));
    for (std::size_t layer = 0; layer < layers_.size() && !stop_.stop_requested(); ++layer) {
      try {
        Loaded loaded;
        loaded.weights = load_layer_weights(checkpoint, family, static_cast<std::int64_t>(layer), options);
        loaded.ready.record(stream.current_stream());
        layers_[layer].set_value(std::move(loaded));
      } catch (...) {
        for (; layer < layers_.size(); ++layer) layers_[layer].set_exception(std::current_exception());
      }
    }
  });
}

ResidentLoad::~ResidentLoad() {
  stop_.request_stop();
  loading_.wait();
}

LayerWeights ResidentLoad::take(std::int64_t layer) {
  Loaded loaded = layers_[static_cast<std::size_t>(layer)].get_future().get();
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  loaded.ready.block(current);
  // Made on the stream of the thread: their memory must not be used again before this stream is done with it.
  for (at::Tensor LayerWeights::*const member : kLayerTensors) {
    if ((loaded.weights.*member).defined()) (loaded.weights.*member).record_stream(current);
  }
  return std::move(loaded.weights);
}

}  // namespace oscar
