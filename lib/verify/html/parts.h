// The pieces of the HTML report. Each returns a fragment; report_html.cpp puts them on one page. Plain HTML, CSS and
// inline SVG: no script, no request to anywhere, light and dark by the reader's preference.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "verify/report.h"

namespace oscar::html {

std::string escape(std::string_view text);  // & < > " '

std::string style_sheet();

// The colour class of a method row, fixed by its order among the report's rows ("s0" .. "s7").
std::string series_class(const VerifyReport& report, const MethodReport& method);
std::string series_name(const MethodReport& method);  // "oscar (prefill)"

std::string verdict_banner(const VerifyReport& report);
std::string method_table(const VerifyReport& report);
std::string gate_table(const VerifyReport& report);     // gates and self checks
std::string needle_tables(const VerifyReport& report);  // empty when no task ran
std::string provenance(const VerifyReport& report);

std::string position_plot(const VerifyReport& report);  // KL against position, logarithmic; empty without data
std::string layer_plots(const VerifyReport& report);    // errors of each layer; empty without data

}  // namespace oscar::html
