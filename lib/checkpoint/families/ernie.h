// Common parts of the dense and the sparse ERNIE 4.5.
#pragma once

#include "checkpoint/families/family.h"

namespace oscar {

// Reads RoPE in interleaved pairs and use_bias, which adds a bias to all attention and MLP projections.
void read_ernie(const Json& config, const std::string& where, ModelConfig* out);

// Defaults that both share.
constexpr ConfigDefaults ernie_defaults(std::int64_t head_dim, std::int64_t kv_heads) {
  return {.head_dim = head_dim,
          .kv_heads = kv_heads,
          .max_position = 131072,
          .bos = 1,
          .eos = {2, -1, -1},
          .rms_eps = 1e-5,
          .rope_theta = 500000.0,
          .tied = true};
}

}  // namespace oscar
