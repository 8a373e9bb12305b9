// calibration_hashes.json of a bundle: hashes of the documents and passages that it was calibrated on. They tell
// whether a text was among them (text/passage_hashes.h) and, by that, let anyone who has a text test whether it was. So
// they are a file of their own, which can be left out or deleted before a bundle is passed on, and stand in no card and
// no export.
#pragma once

#include <string>

#include "base/json.h"

namespace oscar {

inline constexpr const char* kCalibrationHashesName = "calibration_hashes.json";

// Moves the hashes out of the metadata of a collection (`parts[].prompts.documents` and `.passages`; members may be
// missing or of other kinds, which are left alone): [{"prompts": {"sha256", "documents", "passages"}}] for each part
// that has any.
Json take_calibration_hashes(Json& collection);

// Content of the file, and back. InputError naming `where` for anything but lists of 16 hexadecimal digits each.
Json calibration_hashes_to_json(const Json& parts);
Json calibration_hashes_from_json(const Json& json, const std::string& where);

}  // namespace oscar
