#include "model/layer_prefetch.h"

#include <ATen/ATen.h>

#include "model/weights.h"

namespace oscar {

LayerPrefetch::LayerPrefetch(const Checkpoint& checkpoint, const Family& family, const DecoderOptions& options)
    : checkpoint_(checkpoint), family_(family), options_(options), stream_(loading_stream(options.device)) {}

LayerPrefetch::~LayerPrefetch() {
  if (copy_.valid()) copy_.wait();
}

void LayerPrefetch::begin(std::int64_t layer) {
  next_ = layer;
  if (layer >= checkpoint_.config().layers) return;
  copy_ = std::async(std::launch::async, [this, layer] {
    const c10::InferenceMode no_gradients;
    return load_layer_on(stream_, checkpoint_, family_, layer, options_);
  });
}

LayerWeights LayerPrefetch::take(std::int64_t layer) {
  std::optional<LoadedLayer> loaded;
  if (copy_.valid()) loaded = copy_.get();
  LayerWeights weights = loaded && next_ == layer ? take_loaded(std::move(*loaded), options_.device)
                                                  : load_layer_weights(checkpoint_, family_, layer, options_);
  begin(layer + 1);
  return weights;
}

}  // namespace oscar
