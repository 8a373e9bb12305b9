// Looks into each layer while the baseline runs: every method's attention on the baseline's own inputs.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "verify/cache_check.h"
#include "verify/layer_error.h"

namespace oscar {

// One method under the probe; kept over sequences.
struct ProbedMethod {
  const KvMethod* method = nullptr;
  SimulatedPrefillAttention attention;
  std::vector<LayerErrorSums> sums;     // [L]
  std::unique_ptr<CacheChecker> cache;  // of the first sequence alone
  ProbedMethod(const KvMethod& m, const ModelConfig& model);
  std::vector<LayerError> layers() const;
};

// Gives the baseline's output on, unchanged.
class LayerProbe : public Attention {
 public:
  // first: position from which outputs are compared. check_caches: fill and check the paged caches, too.
  LayerProbe(Attention& baseline, std::vector<ProbedMethod>& methods, std::int64_t first, bool check_caches)
      : baseline_(baseline), methods_(methods), first_(first), check_caches_(check_caches) {}
  at::Tensor attend(const AttentionInput& input) override;

 private:
  Attention& baseline_;
  std::vector<ProbedMethod>& methods_;
  std::int64_t first_;
  bool check_caches_;
};

}  // namespace oscar
