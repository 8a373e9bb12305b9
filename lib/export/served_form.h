// The target form of a bundle: the content that a format carries, and the engine's defaults for the rest. oscar-verify
// evaluates and oscar-export writes this same form.
//
//   sglang-branch        one orthogonal matrix per layer, one pair of clip ratios for the model, encoder minmax
//   sglang-branch-v2     the same with one matrix per KV head
//   sglang-branch-v3     transforms that are not orthogonal, centered keys; one pair of clip ratios, encoder minmax
//   transformers  the bundle unchanged: clip ratios per layer and head, its encoder and layout
//   absorbed      the bundle unchanged, its value transform inside the weights of a checkpoint
//
// Latent attention has no target format, nor has waterfill in a model with linear-attention layers. Only the evaluator
// computes with them, as kSimulatedForm.
#pragma once

#include <string>
#include <vector>

#include "bundle/bundle.h"

namespace oscar {

inline constexpr const char* kSimulatedForm = "simulation";

struct ServedForm {
  std::string format;                // id of a row of export_formats(), or kSimulatedForm
  Bundle bundle;                     // what the engine computes with
  std::vector<std::string> changes;  // differences from the fitted bundle; empty: the format is lossless
};

// UsageError for an unknown format (with the list). InputError, with the nearest solution, for a bundle that the format
// cannot carry.
ServedForm served_form(const Bundle& bundle, const std::string& format);

// The first of export_formats() (export_format.h) that carries the bundle without loss. transformers carries every
// bundle, except for models with layers that share another layer's cache; vllm those with latent attention.
ServedForm lossless_form(const Bundle& bundle);

// "one pair of clip ratios ...; encoder minmax ..."
std::string changes_text(const ServedForm& form);

}  // namespace oscar
