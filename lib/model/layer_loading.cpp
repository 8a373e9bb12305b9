#include "model/layer_loading.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <span>
#include <type_traits>

#include "model/weights.h"

namespace oscar {
namespace {

// A stream of the device for loading.
c10::Stream loading_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

// load_layer_weights() on that stream.
LoadedLayer load_layer_on(const c10::Stream& stream, const Checkpoint& checkpoint, const Family& family,
                          std::int64_t layer, const DecoderOptions& options) {
  const c10::DeviceGuard device(options.device);
  const c10::StreamGuard current(stream);
  LoadedLayer loaded;
  loaded.weights = load_layer_weights(checkpoint, family, layer, options);
  loaded.ready.record(stream);
  return loaded;
}

// The weights, ready for the current stream.
LayerWeights take_loaded(LoadedLayer loaded, at::Device device) {
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  loaded.ready.block(current);
  // Allocated on the loading stream: their memory must not be reused before this stream has finished with them.
  static_assert(std::is_standard_layout_v<LayerWeights> && sizeof(LayerWeights) % sizeof(at::Tensor) == 0,
                "LayerWeights holds only tensors");
  auto* tensors = reinterpret_cast<at::Tensor*>(&loaded.weights);
  for (at::Tensor& tensor : std::span(tensors, sizeof(LayerWeights) / sizeof(at::Tensor))) {
    if (tensor.defined()) tensor.record_stream(current);
  }
  return std::move(loaded.weights);
}

}  // namespace

LayerPrefetch::LayerPrefetch(const Checkpoint& checkpoint, const Family& family, const DecoderOptions& options)
    : checkpoint_(checkpoint), family_(family), options_(options), stream_(loading_stream(options.device)) {}

LayerPrefetch::~LayerPrefetch() {
  if (copy_.valid()) copy_.wait();
}

void LayerPrefetch::begin(std::int64_t layer) {
  next_ = layer;
  if (layer < 0 || layer >= checkpoint_.config().layers) return;
  copy_ = std::async(std::launch::async, [this, layer, inference = c10::InferenceMode::is_enabled()] {
    const c10::InferenceMode as_the_caller(inference);
    return load_layer_on(stream_, checkpoint_, family_, layer, options_);
  });
}

LayerWeights LayerPrefetch::take(std::int64_t layer) {
  std::optional<LoadedLayer> loaded;
  if (copy_.valid()) loaded = copy_.get();
  LayerWeights weights = loaded && next_ == layer ? take_loaded(std::move(*loaded), options_.device)
                                                  : load_layer_weights(checkpoint_, family_, layer, options_);
  begin(options_.descending ? layer - 1 : layer + 1);
  return weights;
}

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
