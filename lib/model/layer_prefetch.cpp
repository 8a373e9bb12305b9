#include "model/layer_prefetch.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "model/weights.h"

namespace oscar {

struct LayerPrefetch::Loaded {
  LayerWeights weights;
  c10::Event ready{c10::DeviceType::CUDA};
};

LayerPrefetch::LayerPrefetch(const Checkpoint& checkpoint, const Family& family, const DecoderOptions& options)
    : checkpoint_(checkpoint), family_(family), options_(options) {
  const c10::impl::VirtualGuardImpl guard(options_.device.type());
  stream_ = guard.getStreamFromGlobalPool(options_.device);
}

LayerPrefetch::~LayerPrefetch() {
  if (copy_.valid()) copy_.wait();
}

void LayerPrefetch::begin(std::int64_t layer) {
  next_ = layer;
  if (layer >= checkpoint_.config().layers) return;
  copy_ = std::async(std::launch::async, [this, layer] {
    const c10::InferenceMode no_gradients;
    const c10::DeviceGuard device(options_.device);
    const c10::StreamGuard stream(*stream_);
    auto loaded = std::make_unique<Loaded>();
    loaded->weights = load_layer_weights(checkpoint_, family_, layer, options_);
    loaded->ready.record(stream.current_stream());
    return loaded;
  });
}

LayerWeights LayerPrefetch::take(std::int64_t layer) {
  std::unique_ptr<Loaded> loaded;
  if (copy_.valid()) loaded = copy_.get();
  if (loaded != nullptr && next_ == layer) {
    const c10::impl::VirtualGuardImpl guard(options_.device.type());
    const c10::Stream current = guard.getStream(options_.device);
    loaded->ready.block(current);
    LayerWeights& w = loaded->weights;
    // Made on the copy's stream: their memory must not be used again before this stream is done with it.
    for (at::Tensor LayerWeights::*const member : kLayerTensors) {
      if ((w.*member).defined()) (w.*member).record_stream(current);
    }
    LayerWeights taken = std::move(w);
    begin(layer + 1);
    return taken;
  }
  LayerWeights weights = load_layer_weights(checkpoint_, family_, layer, options_);
  begin(layer + 1);
  return weights;
}

}  // namespace oscar
