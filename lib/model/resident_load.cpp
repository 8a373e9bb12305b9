#include "model/resident_load.h"

#include <ATen/ATen.h>

namespace oscar {

ResidentLoad::ResidentLoad(const Checkpoint& checkpoint, const Family& family, const DecoderOptions& options)
    : device_(options.device), layers_(static_cast<std::size_t>(checkpoint.config().layers)) {
  const bool inference = c10::InferenceMode::is_enabled();  // otherwise gradients may pass through the weights
  loading_ = std::async(std::launch::async, [this, &checkpoint, &family, options, inference] {
    const c10::InferenceMode mode(inference);
    const c10::Stream stream = loading_stream(options.device);
    for (std::size_t layer = 0; layer < layers_.size() && !stop_.stop_requested(); ++layer) {
      try {
        layers_[layer].set_value(load_layer_on(stream, checkpoint, family, static_cast<std::int64_t>(layer), options));
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
  return take_loaded(layers_[static_cast<std::size_t>(layer)].get_future().get(), device_);
}

}  // namespace oscar
