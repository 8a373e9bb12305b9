// Llama 2, 3, 3.1, 3.2 and the many models published under its architecture.
#include "model/families/family.h"

namespace oscar {

Family llama_family(const ModelConfig& config) {
  Family family;
  if (config.qkv_bias) family.add_qkv_bias();  // attention_bias gives all four projections a bias
  if (config.output_bias) family.add_output_bias();
  if (config.mlp_bias) family.add_mlp_bias();
  return family;
}

}  // namespace oscar
