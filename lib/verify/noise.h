// What a KL contains that no code causes: the noise of a report.
#pragma once

#include <vector>

#include "cache/kv_method.h"
#include "checkpoint/checkpoint.h"
#include "model/decoder.h"
#include "report/report.h"
#include "text/sequences.h"

namespace oscar {

// On the first sequence, against the BF16 cache of `decoder`, which is on a CPU in FP32: the same cache where weights,
// activations and products are BF16, if `bfloat16`; and each of `methods` with every token in its BF16 window, so that
// only its transforms, and their rounding to BF16, remain. NumericalError, InterruptedError.
NoiseFacts measure_noise(Decoder& decoder, const Checkpoint& checkpoint, const KvMethod& baseline,
                         const std::vector<const KvMethod*>& methods, const SequenceSet& set,
                         std::int64_t first_position, bool bfloat16);

}  // namespace oscar
