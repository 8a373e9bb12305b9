// A bundle made from the rotation files that serving engines load (K.pt and V.pt), so that they can be judged.
#pragma once

#include "bundle/bundle.h"
#include "export/rotation_pt.h"

namespace oscar {

// Method kPublishedMethod; scope from the files. Clip ratios, windows, group and the model's fingerprint are those that
// oscar-export recorded under `calibration`; files of other programs have none, and get no clip, the usual windows and
// no fingerprint. Files with one matrix a layer do not say how many heads use it: kv_heads is 1 there.
// InputError when the two files do not belong together: other layers, sizes, heads or records, or a value file given as
// keys (told by the objective). check_bundle() finds what is wrong with the numbers.
Bundle bundle_from_published(const fs::path& key_file, const fs::path& value_file);
// Whether the files of a bundle made here recorded their clip ratios.
bool has_recorded_clip(const Bundle& bundle);
// The id of the export format that the files are of.
std::string published_format(const Bundle& bundle);
Bundle bundle_from_rotations(const RotationFile& key, const std::string& key_name, const RotationFile& value,
                             const std::string& value_name);

}  // namespace oscar
