// Openings of calibration text, written for this project: texts of many kinds, and questions for a chat. The model
// continues them freely.
#pragma once

#include <string>
#include <vector>

namespace oscar {

const std::vector<std::string>& text_openers();
const std::vector<std::string>& questions();

}  // namespace oscar
