// Spectra of keys and values on text, before and after the transforms of a method, and what both caches predict there.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/kv_method.h"
#include "distributed/ranks.h"
#include "model/decoder.h"
#include "report/report.h"

namespace oscar {

struct JudgedProbe {
  std::vector<LayerSpectrum> spectra;
  // Most probable next tokens after the last positions of the text, with the baseline's cache and with the method's.
  std::vector<std::int32_t> baseline_top, coded_top;
};

// One pass of `baseline` and one of `method` over the tokens. For each layer the keys, then the values: variances of
// the channels in the model's basis and in that of the cache of `method`, each sorted in descending order and averaged
// over KV heads. shown: positions at the end of the text whose predictions are kept.
JudgedProbe probe_judged(Decoder& decoder, const KvMethod& baseline, const KvMethod& method,
                         const std::vector<std::int32_t>& ids, std::int64_t shown);

// What measure() gives, measured by the last rank, which has less to do than rank 0; the same on all. Called by all.
JudgedProbe by_last_rank(Ranks* ranks, const std::function<JudgedProbe()>& measure);

}  // namespace oscar
