// The version of report.json, which lib/report writes and lib/export and lib/verify read.
#pragma once

namespace oscar {

inline constexpr int kReportFormatVersion = 2;

}  // namespace oscar
