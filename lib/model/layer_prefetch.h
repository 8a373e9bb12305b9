// Streamed layers on a GPU: while one layer computes, a thread copies the next one's weights from the mapped file
// through pinned memory, on a stream of its own. Two layers are on the device then. The same weights as
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
  ~LayerPrefetch();  // waits for the copy under way

  // Weights of a layer, ready for the current stream, and the next layer's copy begun, under InferenceMode where the
  // caller is. Errors of a load come out of the call that asks for its layer.
  LayerWeights take(std::int64_t layer);

 private:
  void begin(std::int64_t layer);

  const Checkpoint& checkpoint_;
  const Family& family_;
  DecoderOptions options_;
  // One for all copies: freed memory is used again by the stream that it was made on and by no other.
  c10::Stream stream_;
  std::int64_t next_ = -1;  // layer of the copy under way
  std::future<LoadedLayer> copy_;
};

}  // namespace oscar
