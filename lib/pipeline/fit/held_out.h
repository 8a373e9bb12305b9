// Prompts that oscar-fit --model holds out: neither statistics nor curves see them, and the fitted bundle is measured
// on them at the end.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "checkpoint/model_config.h"
#include "layout/cache_windows.h"
#include "text/prompts.h"

namespace oscar {

// Sequences that are measured, and tokens of each.
struct HeldOutShape {
  std::int64_t sequences = 0, context = 0;
  std::int64_t tokens() const { return sequences * context; }
};

// What a run measures where prompts abound: 8 sequences of the contexts that will be served, at most 32,768 tokens
// each. On the CPU they are shorter, and down to 4, such that two passes take about two minutes of two cores. The rule
// counts products, not seconds, so that it gives the same on every machine.
HeldOutShape wanted_shape(const ModelConfig& model, c10::Device device, std::int64_t served);

// The same with `tokens` tokens of text: as many sequences, as long as the text allows, or 4 if they would be shorter
// than 1,024 tokens. nullopt: they would not be twice as long as the BF16 windows, and most tokens would see little
// that is quantized.
std::optional<HeldOutShape> shape_within(const HeldOutShape& wanted, std::int64_t tokens, const CacheWindows& windows);

// Takes prompts out of the set and returns them, for at most the wanted tokens. First comes what the budget of the
// calibration does not reach: whole prompts, and the end of the one that it cuts. If that is not enough: a tenth of all
// tokens, or up to a fifth for 8 sequences of 1,024 tokens. Prompts come from all parts of the set; a long one gives
// its end. Empty if shape_within() would have none, so that short sets stay whole. The rows are listed among
// `prompts.skipped`.
PromptSet hold_out(PromptSet& prompts, std::int64_t budget, const HeldOutShape& wanted, const CacheWindows& windows);

}  // namespace oscar
