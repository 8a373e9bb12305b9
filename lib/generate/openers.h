// Beginnings that calibration text starts from, written for this project: texts of many kinds, and questions for a
// chat. The model goes on from them as it likes.
#pragma once

#include <string>
#include <vector>

namespace oscar {

const std::vector<std::string>& text_openers();
const std::vector<std::string>& questions();

}  // namespace oscar
