// The parts of the HTML report. Each returns a fragment; report_html.cpp assembles the page. The page is plain HTML
// and CSS. It runs no script, makes no requests and follows the reader's light or dark preference.
#pragma once

#include <string>
#include <string_view>

#include "report/report.h"

namespace oscar {
extern const std::string_view page_css;  // html/page.css
}

namespace oscar::html {

// Writes & < > " ' as entities, and unsafe characters as escape_text() (foreign_text.h) does. Safe for HTML and XML.
std::string escape(std::string_view text);

// A scrollable frame for a table or plot that may be wider than the window. `label` names it for screen readers.
std::string framed(const std::string& content, const std::string& label);

// The color class of a method row ("s0" .. "s7"), determined by its order among the report's rows.
std::string series_class(const VerifyReport& report, const MethodReport& method);
std::string series_name(const MethodReport& method);  // "oscar (prefill)", "oscar (bytes, prefill)"

std::string verdict_banner(const VerifyReport& report);
std::string method_table(const VerifyReport& report);
std::string text_table(const VerifyReport& report);  // rows of bundles on each text; empty for one text
std::string gate_table(const VerifyReport& report);  // gates and self-checks
std::string provenance(const VerifyReport& report);

std::string position_table(const VerifyReport& report);  // KL by position; empty without data
// Errors of the candidate rows, or of all rows if there are none. One row per layer, worst first, with its bit widths.
// Empty without data.
std::string layer_tables(const VerifyReport& report);
std::string memory_line(const VerifyReport& report);  // cache size reduction by context; empty without a bundle
// What few readers need: a line that opens to the content.
std::string folded(const std::string& summary, const std::string& content);

}  // namespace oscar::html
