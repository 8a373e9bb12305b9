// Checks the paged cache against the codec, and decode attention and a CPU reader against the scored values. Cache and
// simulated prefill have separate code, so the comparison reveals errors in either.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attention/cached_attention.h"
#include "attention/stored_rows.h"
#include "checkpoint/model_config.h"
#include "model/attention.h"

namespace oscar {

struct CacheCheck {
  std::int64_t rows = 0;       // quantized rows compared with the CPU encoder: tokens x KV heads x K and V x layers
  std::int64_t differing = 0;  // rows whose codes or parameters differ from the encoder's
  std::int64_t read = 0;       // quantized rows read back
  std::int64_t misread = 0;    // rows that differ from the simulated prefill's
  // worst layer: |decode - prefill| / |prefill| of attention output for the last queries; 0 for a layer where it is at
  // most twice what rounding keys to BF16 does to plain attention
  double reader_error = 0;
  std::uint64_t allocated_bytes = 0;  // per sequence, all layers
};

// Limits on the quantized rows of a sequence that are compared with the CPU encoder and read back. With more rows, only
// every n-th page is checked. The start page varies by layer and side, so that each place in a sequence is covered.
inline constexpr std::int64_t kComparedRows = std::int64_t{1} << 17, kReadRows = std::int64_t{1} << 20;

// The pages of one layer and side to compare. rows: quantized rows of the complete sequence; place: 2 layer + side.
PageSample compared_pages(std::int64_t rows, std::int64_t place, std::int64_t most = kComparedRows);

// The data that the check of a layer needs, so that the rest can be freed.
struct LayerToCheck {
  AttentionInput input;         // without a batch; only the queries of the last tokens, [up to 8, Hq, d]
  at::Tensor prefill;           // output of the simulated prefill for them, [up to 8, Hq, d]
  std::uint64_t bytes() const;  // bytes that this keeps alive
};
// prefill: [T, Hq, d], on the same input.
LayerToCheck layer_to_check(const AttentionInput& input, const at::Tensor& prefill);

// Receives one sequence, layer by layer.
class CacheChecker {
 public:
  // method must outlive the object.
  CacheChecker(const KvMethod& method, const ModelConfig& model, at::Device device = at::kCPU);

  void check_layer(const LayerToCheck& layer);
  CacheCheck result() const { return check_; }

 private:
  const KvMethod& method_;
  ModelConfig model_;
  at::Device device_;
  KvCacheSpec pages_;  // reference for the bytes
  CacheCheck check_;
};

}  // namespace oscar
