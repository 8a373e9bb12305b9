#include "model/layer_prefetch.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "model/weights.h"

namespace oscar {

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

}  // namespace oscar
