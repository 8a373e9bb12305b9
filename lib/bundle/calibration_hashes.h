// calibration_hashes.json of a bundle: hashes of its calibration documents and passages. They show whether a text was
// among them (text/text_hashes.h), so anyone who has a text can test that. Therefore they are in a separate file,
// which can be omitted or deleted before a bundle is passed on, and in no card and no export.
#pragma once

#include <string>

#include "base/json.h"

namespace oscar {

inline constexpr const char* kCalibrationHashesName = "calibration_hashes.json";

// Moves the hashes out of the metadata of a collection (`parts[].prompts.documents` and `.passages`). Members may be
// missing or of other types; those stay. Returns [{"prompts": {"sha256", "documents", "passages"}}] for each part with
// hashes.
Json take_calibration_hashes(Json& collection);

// Content of the file, and its parser. InputError naming `where` for anything but lists of 16 hexadecimal digits each.
Json calibration_hashes_to_json(const Json& parts);
Json calibration_hashes_from_json(const Json& json, const std::string& where);

}  // namespace oscar
