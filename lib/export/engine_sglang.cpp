// Releases of SGLang (python/oscar_kv/engines/sglang).
#include "export/engine_limits.h"

namespace oscar {

const PluginEngine& sglang_engine() {
  static const PluginEngine engine = {
      .name = "SGLang",
      .release = "0.5.23",
      .releases = "0.5.23",
      .gpus = "NVIDIA H100 and H200",
      .limits = {{"sliding_window_size", "a sliding window", true, true, has_sliding_window},
                 {"use_irope", "attention in chunks of the sequence", true, false, has_chunks},
                 {"logit_cap", "a soft cap on logits", true, true, has_soft_cap},
                 {"sinks", "learned sink logits", true, false, has_sink_logits},
                 {"linear_attention", "linear attention", false, true, has_linear_attention},
                 {"pos_encoding_mode", "ALiBi", true, false, nullptr}},
      .command = "sglang serve",
      .options =
          "--dtype bfloat16 --attention-backend oscar --page-size 64 --max-running-requests 32 \\\n"
          "  --disable-prefill-cuda-graph",
      .length = "--context-length",
      .ranks = "--tp-size",
      .no_sharing = "--disable-radix-cache",
      .sharing = "the radix cache",
      .notes =
          "Each of the 32 requests has BF16 windows, whose memory grows with that number. Layers with a sliding "
          "window, linear attention or a soft cap stay in BF16. Speculative decoding, disaggregation and the "
          "hierarchical cache are refused."};
  return engine;
}

}  // namespace oscar
