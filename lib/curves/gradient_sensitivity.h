// Sensitivities of allocators that read gradients of the loss (rotation/allocators.h): the sum of log p of the text's
// own next tokens, by one backward pass over stored hidden states, layer by layer (statistics/layer_gradient.h).
#pragma once

#include "curves/layer_sensitivity.h"

namespace oscar {

// PM-KVQ: mean over rows and KV heads of |g . (Q(x) - x)|, what coding one row x does to the loss to first order; g:
// its gradient through the queries that read it coded, Q: whole widths kWholeWidths[i]. [layers x 2][4]. The decoder's
// weights were not loaded under InferenceMode. InterruptedError on SIGINT; NumericalError.
Sensitivities first_order_scores(Decoder& decoder, const Bundle& bundle, const SensitivityRequest& request);

// KVmix: norm of the gradient of the loss to W_K and to W_V, mean over the sequences. [layers x 2][1]. As above.
Sensitivities weight_gradient_norms(Decoder& decoder, const SensitivityRequest& request);

}  // namespace oscar
