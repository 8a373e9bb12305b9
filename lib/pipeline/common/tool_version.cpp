#include "build_info.h"
#include "pipeline/common/common_options.h"

namespace oscar {

std::string tool_version() { return kToolVersion; }

}  // namespace oscar
