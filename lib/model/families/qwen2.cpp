// Qwen2 and Qwen2.5: q, k and v always have a bias, o never has.
#include "model/families/family.h"

namespace oscar {

Family qwen2_family(const ModelConfig&) {
  Family family;
  family.add_qkv_bias();
  return family;
}

}  // namespace oscar
