// Does the paged cache hold what the codec says, and do decode attention and a reader on the CPU get from it what is
// scored? Written and read by different code than the simulated prefill, so that a slip in either shows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attention/cache_factory.h"
#include "attention/cached_attention.h"
#include "attention/stored_rows.h"
#include "checkpoint/model_config.h"
#include "model/attention.h"

namespace oscar {

struct CacheCheck {
  std::int64_t rows = 0;       // coded rows compared with the encoder on the CPU: tokens x KV heads x K and V x layers
  std::int64_t differing = 0;  // whose codes or parameters are not those of the encoder
  std::int64_t read = 0;       // coded rows read back
  std::int64_t misread = 0;    // that are not what the simulated prefill scores with
  double reader_error = 0;     // worst layer: |decode - prefill| / |prefill| of the last queries' attention output
  std::uint64_t allocated_bytes = 0;  // of the sequence, all layers
};

// Up to so many coded rows of a sequence are all compared with the encoder on the CPU, and read back; of more, every
// n-th page, in layers and sides by turns from another page on, so that each place in a sequence has its turn.
inline constexpr std::int64_t kComparedRows = std::int64_t{1} << 17, kReadRows = std::int64_t{1} << 20;

// Which pages of one layer and side are compared. rows: coded rows of the whole sequence; place: 2 layer + side.
PageSample compared_pages(std::int64_t rows, std::int64_t place, std::int64_t most = kComparedRows);

// What the check of a layer takes of it, so that the rest need not be kept until then.
struct LayerToCheck {
  AttentionInput input;         // without a batch; its queries are those of the last tokens alone, [up to 8, Hq, d]
  at::Tensor prefill;           // the simulated prefill's output for them, [up to 8, Hq, d]
  std::uint64_t bytes() const;  // that it keeps alive
};
// prefill: [T, Hq, d], on the same input.
LayerToCheck layer_to_check(const AttentionInput& input, const at::Tensor& prefill);

// Fed with one sequence, layer after layer.
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
  KvCacheSpec pages_;  // what the bytes are compared with
  CacheCheck check_;
};

}  // namespace oscar
