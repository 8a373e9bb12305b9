// Loads layers to a GPU beside the computation, by one thread on its own stream. The weights equal
// load_layer_weights().
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <future>
#include <stop_token>
#include <vector>

#include "checkpoint/families/family.h"
#include "model/decoder.h"

namespace oscar {

struct LoadedLayer {
  LayerWeights weights;
  c10::Event ready{c10::DeviceType::CUDA};  // recorded after the copies
};

// Prefetches streamed layers. While one layer computes, the thread copies the next layer's weights from the mapped file
// through pinned memory. Two layers are then on the device.
class LayerPrefetch {
 public:
  LayerPrefetch(const Checkpoint& checkpoint, const Family& family, const DecoderOptions& options);
  ~LayerPrefetch();  // waits for the running copy

  // Returns a layer's weights, ready for the current stream, and starts copying the next layer. Uses InferenceMode if
  // the caller does. A load error is thrown by the call that requests its layer.
  LayerWeights take(std::int64_t layer);

 private:
  void begin(std::int64_t layer);

  const Checkpoint& checkpoint_;
  const Family& family_;
  DecoderOptions options_;
  // One stream for all copies: the allocator reuses freed memory only on the stream where it was allocated.
  c10::Stream stream_;
  std::int64_t next_ = -1;  // layer that is being copied
  std::future<LoadedLayer> copy_;
};

// Loads all layers of a model one after another, and they stay. So the first pass can start when the first layer
// arrives.
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
