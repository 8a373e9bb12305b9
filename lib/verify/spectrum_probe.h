// Spectra of keys and values on text, before and after the transforms of a method.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/kv_method.h"
#include "distributed/ranks.h"
#include "model/decoder.h"
#include "report/report.h"

namespace oscar {

// One pass of `baseline` over the tokens. For each layer the keys, then the values: variances of the channels in the
// model's basis and in that of the cache of `method`, each sorted in descending order and averaged over KV heads.
std::vector<LayerSpectrum> measure_spectra(Decoder& decoder, const KvMethod& baseline, const KvMethod& method,
                                           const std::vector<std::int32_t>& ids);

// What measure() gives, measured by the last rank, which has less to do than rank 0; the same on all. Called by all.
std::vector<LayerSpectrum> by_last_rank(Ranks* ranks, const std::function<std::vector<LayerSpectrum>()>& measure);

}  // namespace oscar
