// Prefetches streamed layers on a GPU. While one layer computes, a thread copies the next layer's weights from the
// mapped file through pinned memory on its own stream. Two layers are then on the device. The weights equal
// load_layer_weights().
#pragma once

#include <future>
#include <optional>

#include "checkpoint/families/family.h"
#include "model/loaded_layer.h"

namespace oscar {

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

}  // namespace oscar
