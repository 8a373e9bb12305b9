// Does the paged cache hold what the codec says, and does decode attention read it back? Written and read by different
// code than the simulated prefill, so that a slip in either shows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attention/cache_factory.h"
#include "attention/cached_attention.h"
#include "checkpoint/model_config.h"
#include "model/attention.h"

namespace oscar {

struct CacheCheck {
  std::int64_t rows = 0;       // quantised rows compared: tokens x KV heads x K and V x layers
  std::int64_t differing = 0;  // whose codes or parameters are not those of the encoder
  double reader_error = 0;     // worst layer: |decode - prefill| / |prefill| of the last queries' attention output
  std::uint64_t allocated_bytes = 0;  // of the sequence, all layers
};

// Fed with one sequence, layer after layer.
class CacheChecker {
 public:
  CacheChecker(const KvMethod& method, const ModelConfig& model, at::Device device = at::kCPU);

  // `prefill`: [T, Hq, d], the simulated prefill's output on the same input.
  void check_layer(const AttentionInput& input, const at::Tensor& prefill);
  CacheCheck result() const;

 private:
  const KvMethod& method_;
  KvCacheSpec pages_;  // what the bytes are compared with
  PagedAttention paged_;
  CacheCheck check_;
};

}  // namespace oscar
