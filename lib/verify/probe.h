// Observes each layer during the baseline run: applies every method's attention to the baseline's inputs.
#pragma once

#include <deque>
#include <vector>

#include "base/timeline.h"
#include "model/background_jobs.h"
#include "model/decoder.h"
#include "verify/cache_check.h"
#include "verify/layer_error.h"

namespace oscar {

// One method in the probe, kept across sequences.
struct ProbedMethod {
  const KvMethod* method = nullptr;
  SimulatedPrefillAttention attention;
  std::vector<LayerErrorSums> sums;   // [L] of the layers with a KV cache
  std::vector<std::int64_t> numbers;  // [L] their numbers in the model
  // First sequence only, one per checking thread. None: finished, or the method has no pages.
  struct Cache {
    CacheChecker checker;
    double seconds = 0;  // time spent
  };
  std::vector<Cache> caches;
  CacheCheck check;  // combined result
  // threads: number of threads that check pages. device: where the checked cache is; the CPU if the device's kernels do
  // not support the method, which is logged.
  ProbedMethod(const KvMethod& m, const ModelConfig& model, at::Device device = at::kCPU, Timeline* timeline = nullptr,
               std::size_t threads = 1);
  std::vector<LayerError> layers() const;
  void finish_cache();  // takes the result and frees the pages

  // All of the above as numbers, to continue later. restore: InputError naming `where` if the numbers do not fit
  // layers with kv_heads heads.
  std::vector<double> state() const;
  void restore(const std::vector<double>& state, std::int64_t kv_heads, const std::string& where);
};

// Returns the baseline's output unchanged.
class LayerProbe : public Attention {
 public:
  // first: position from which outputs are compared. tiers: which tokens form the sink and recent windows.
  // check_caches: also fill and check the paged caches, as jobs of `checks` in alternation by layer; without `checks`,
  // inside attend(). timeline: null measures nothing.
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
