// Looks into each layer while the baseline runs: every method's attention on the baseline's own inputs.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/timeline.h"
#include "model/background_jobs.h"
#include "model/decoder.h"
#include "verify/cache_check.h"
#include "verify/layer_error.h"

namespace oscar {

// One method under the probe; kept over sequences.
struct ProbedMethod {
  const KvMethod* method = nullptr;
  SimulatedPrefillAttention attention;
  std::vector<LayerErrorSums> sums;   // [L] of the layers that hold a KV cache
  std::vector<std::int64_t> numbers;  // [L] that the model gives to them
  // Of the first sequence alone, one for each thread that checks; none: done, or no pages for the method.
  struct Cache {
    CacheChecker checker;
    double seconds = 0;  // that it took
  };
  std::vector<Cache> caches;
  CacheCheck check;  // what they found
  // threads: that check pages. device: of the cache under check; the CPU where its kernels cannot hold the method,
  // which is logged.
  ProbedMethod(const KvMethod& m, const ModelConfig& model, at::Device device = at::kCPU, Timeline* timeline = nullptr,
               std::size_t threads = 1);
  std::vector<LayerError> layers() const;
  void finish_cache();  // takes the result and lets the pages go

  // Everything above as FP64 numbers, to go on later. restore: InputError naming `where` when they are not such numbers
  // of layers with kv_heads heads.
  at::Tensor state() const;
  void restore(const at::Tensor& state, std::int64_t kv_heads, const std::string& where);
};

// Gives the baseline's output on, unchanged.
class LayerProbe : public Attention {
 public:
  // first: position from which outputs are compared. tiers: which tokens count as sink and recent ones. check_caches:
  // fill and check the paged caches, too, as jobs of `checks`, which layers take by turns; without it, in attend().
  // timeline: null: nothing is measured.
  LayerProbe(Attention& baseline, Decoder& decoder, std::vector<ProbedMethod>& methods, std::int64_t first,
             const CacheWindows& tiers, bool check_caches, Timeline* timeline = nullptr,
             std::deque<BackgroundJobs>* checks = nullptr)
      : baseline_(baseline),
        decoder_(decoder),
        methods_(methods),
        first_(first),
        tiers_(tiers),
        check_caches_(check_caches),
        timeline_(timeline),
        checks_(checks) {}
  at::Tensor attend(const AttentionInput& input) override;

 private:
  Attention& baseline_;
  Decoder& decoder_;  // for W_O
  std::vector<ProbedMethod>& methods_;
  std::int64_t first_;
  CacheWindows tiers_;
  bool check_caches_;
  Timeline* timeline_;
  std::deque<BackgroundJobs>* checks_;
};

}  // namespace oscar
