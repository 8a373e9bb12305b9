// Gemma 2: zero-centered norms before and after both branches, scaled embeddings, soft caps on attention logits and on
// the model's logits, windows in every other layer.
#include "checkpoint/families/family.h"
#include "checkpoint/families/gemma.h"

namespace oscar {
namespace {

void gemma2_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_gemma(config, where, 50.0, 30.0, out);
}

}  // namespace

extern const FamilyRow kGemma2 = {
    .architecture = "Gemma2ForCausalLM",
    .model_type = "gemma2",
    .defaults = gemma_defaults(256000, 8192),
    .read_config = gemma2_config,
    .family = gemma_family,
};

}  // namespace oscar
