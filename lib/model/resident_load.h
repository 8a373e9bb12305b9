// Loads all layers of a model to a GPU, where they stay. A thread loads them one after another on its own stream, so
// the first pass can start when the first layer arrives. The weights equal load_layer_weights().
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
  ~ResidentLoad();  // stops after the layer that is being loaded

  // Returns a layer's weights, ready for the current stream. Call it once per layer. A load error is thrown by the call
  // for its layer.
  LayerWeights take(std::int64_t layer);

 private:
  at::Device device_;
  std::vector<std::promise<LoadedLayer>> layers_;
  std::stop_source stop_;
  std::future<void> loading_;
};

}  // namespace oscar
