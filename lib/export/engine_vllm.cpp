// vLLM (python/oscar_kv/engines/vllm).
#include "export/engine_limits.h"

namespace oscar {

const PluginEngine& vllm_engine() {
  static const PluginEngine engine = {
      .name = "vLLM",
      .release = "0.33",
      .releases = "0.32.x and 0.33.x",
      .gpus = "NVIDIA H100 and H200",
      .limits = {{"sliding_window", "a sliding window", true, true, has_sliding_window},
                 {"logits_soft_cap", "a soft cap on logits", true, true, has_soft_cap},
                 {"linear_attention", "linear attention", false, true, has_linear_attention},
                 {"alibi_slopes", "ALiBi", true, true, nullptr},
                 {"attention_chunk_size", "attention in chunks of the sequence", false, false, has_chunks}},
      .command = "vllm serve",
      .options = "--dtype bfloat16 --kv-cache-dtype oscar --attention-backend OSCAR",
      .length = "--max-model-len",
      .ranks = "--tensor-parallel-size",
      .no_sharing = "--no-enable-prefix-caching",
      .sharing = "prefix caching",
      .notes =
          "`python -m oscar_kv.serve_check MODEL oscar_bundle` compares tasks and throughput with the BF16 cache "
          "on your GPU. Layers with a sliding window, linear attention or a soft cap stay in BF16. Speculative "
          "decoding works with ngram, draft models, EAGLE-3 and MTP. KV transfer and context parallelism are refused.",
      .latents = true};
  return engine;
}

}  // namespace oscar
