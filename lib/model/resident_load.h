// All layers of a model on their way to a GPU, where they stay: a thread loads one after another on a stream of its
// own, so that the first pass begins when the first layer is there. The same weights as load_layer_weights().
#pragma once

#include <cstdint>
#include <future>
#include <stop_token>
#include <vector>

#include "checkpoint/families/family.h"
#include "model/loaded_layer.h"

namespace oscar {

class ResidentLoad {
 public:
  ResidentLoad(const Checkpoint& checkpoint, const Family& family, const DecoderOptions& options);
  ~ResidentLoad();  // ends after the layer under way

  // Weights of a layer, once for each, ready for the current stream. Errors of a load come out of the call for its
  // layer.
  LayerWeights take(std::int64_t layer);

 private:
  at::Device device_;
  std::vector<std::promise<LoadedLayer>> layers_;
  std::stop_source stop_;
  std::future<void> loading_;
};

}  // namespace oscar
