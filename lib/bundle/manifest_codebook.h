// Codebooks in the manifest of a bundle.
#pragma once

#include <string>

#include "bundle/manifest.h"

namespace oscar {

Json codebook_to_json(const Codebook& codebook);

// Reads the member `codebook` of a side (`where` names it) and lists the tensors that it calls for. InputError for
// sizes that do not fit the layer, or names that are not known.
void read_codebook(const Json& json, const std::string& where, LayerTransform& layer, bool key, Manifest& manifest);

}  // namespace oscar
