// Mistral: Llama's names, never a bias; one sliding window for all layers, or none.
#include "model/families/family.h"

namespace oscar {

Family mistral_family(const ModelConfig&) { return Family{}; }

}  // namespace oscar
