// Makes a bundle from the rotation files that serving engines load (K.pt and V.pt), so that they can be evaluated.
#pragma once

#include "bundle/bundle.h"
#include "export/rotation_pt.h"

namespace oscar {

// The method is kPublishedMethod; the files give the scope. oscar-export records clip ratios, windows, group and the
// model's fingerprint under `calibration`. Files of other programs have no such record; they get no clip, the usual
// windows and no fingerprint. Files with one matrix per layer do not give the number of heads, so kv_heads is 1.
// InputError if the two files differ in layers, sizes, heads or records, or if a value file is given as keys (its
// objective shows this). check_bundle() checks the numbers.
Bundle bundle_from_published(const fs::path& key_file, const fs::path& value_file);
// Whether the files of such a bundle recorded their clip ratios.
bool has_recorded_clip(const Bundle& bundle);
// The id of the files' export format.
std::string published_format(const Bundle& bundle);
Bundle bundle_from_rotations(const RotationFile& key, const std::string& key_name, const RotationFile& value,
                             const std::string& value_name);

}  // namespace oscar
