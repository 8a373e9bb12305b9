// The form in which a bundle is served: what a format carries of it, and what the engine that reads the format makes of
// the rest. It is what oscar-verify judges and oscar-export writes, so that the two are one thing.
//
//   sglang        one orthogonal matrix a layer, one pair of clip ratios for the whole model, encoder minmax
//   sglang-v2     the same with a matrix for each KV head
//   sglang-v3     transforms that are not orthogonal, centered keys; one pair of clip ratios, encoder minmax
//   transformers  the bundle as it is: clip ratios of each layer and head, its own encoder and layout
//   absorbed      the bundle as it is, its value transform inside the weights of a checkpoint
//
// Bundles of latent attention have no such form, nor has waterfill in a model with layers of linear attention:
// the judge alone computes with them, as kSimulatedForm.
#pragma once

#include <string>
#include <vector>

#include "bundle/bundle.h"

namespace oscar {

inline constexpr const char* kSimulatedForm = "simulation";

struct ServedForm {
  std::string format;                // id of a row of export_formats(), or kSimulatedForm
  Bundle bundle;                     // what the engine computes with
  std::vector<std::string> changes;  // what differs from the bundle as it was fitted; empty: the format loses nothing
};

// UsageError for an unknown format (with the list); InputError for a bundle that the format cannot carry, with the
// nearest way out.
ServedForm served_form(const Bundle& bundle, const std::string& format);

// The first of export_formats() (export_format.h) that carries the bundle and loses nothing; transformers carries every
// bundle of a model without latent attention and without layers that read the cache of another one.
ServedForm lossless_form(const Bundle& bundle);

// "one pair of clip ratios ...; encoder minmax ..."
std::string changes_text(const ServedForm& form);

}  // namespace oscar
