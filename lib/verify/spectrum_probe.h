// Spectra of keys and values on a text, before and after a method's transforms, and the predictions with both caches.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/kv_method.h"
#include "distributed/ranks.h"
#include "model/decoder.h"
#include "report/report.h"

namespace oscar {

struct EvaluatedProbe {
  std::vector<LayerSpectrum> spectra;
  // Most probable next tokens after the last positions of the text, with the baseline's cache and the method's cache.
  std::vector<std::int32_t> baseline_top, coded_top;
};

// Runs one pass of `baseline` and one of `method` over the tokens. For each layer, first the keys and then the values:
// channel variances in the model's basis and in the cache basis of `method`. They are sorted descending and averaged
// over KV heads. shown: number of positions at the end of the text whose predictions are kept.
EvaluatedProbe probe_evaluated(Decoder& decoder, const KvMethod& baseline, const KvMethod& method,
                               const std::vector<std::int32_t>& ids, std::int64_t shown);

// Runs measure() on the last rank, which has less work than rank 0, and returns its result on all ranks. All ranks call
// it.
EvaluatedProbe by_last_rank(Ranks* ranks, const std::function<EvaluatedProbe()>& measure);

}  // namespace oscar
