// The pieces of the HTML report. Each returns a fragment; report_html.cpp puts them on one page. Plain HTML, CSS and
// inline SVG, readable without its one small script (page.js); no request to anywhere, light and dark by the reader's
// preference.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/report.h"

namespace oscar::html {

// & < > " ' as entities, everything that escape_text() (foreign_text.h) escapes as it shows it: good for HTML and XML.
std::string escape(std::string_view text);

extern const std::string_view page_css, page_js;  // html/page.css and html/page.js

// A table or plot that may be wider than the window: it scrolls in a frame that says so (page.css). `label` names it
// for screen readers.
std::string framed(const std::string& content, const std::string& label);

// The policy of the page: nothing is loaded from anywhere, and no script runs but page.js, known by its hash.
std::string content_security_policy();

// The color class of a method row, fixed by its order among the report's rows ("s0" .. "s7").
std::string series_class(const VerifyReport& report, const MethodReport& method);
std::string series_name(const MethodReport& method);  // "oscar (prefill)", "oscar (bytes, prefill)"

std::string verdict_banner(const VerifyReport& report);
std::string method_table(const VerifyReport& report);
std::string gate_table(const VerifyReport& report);     // gates and self checks
std::string needle_tables(const VerifyReport& report);  // empty when no task ran
std::string needle_grids(const VerifyReport& report);   // depth by length for each method; empty with one length
std::string provenance(const VerifyReport& report);

std::string position_plot(const VerifyReport& report);  // KL against position, logarithmic; empty without data
// Errors of the judged rows, else of all: one row a layer, worst first, with its widths. Empty without data.
std::string layer_tables(const VerifyReport& report);
// The limit of the gate on the mean KL, which plots of KL draw as a line; empty without such a gate.
std::optional<double> kl_limit(const VerifyReport& report);
std::string passage_samples(const VerifyReport& report);  // what both caches predict, side by side; empty without text
std::string memory_line(
    const VerifyReport& report);  // how much smaller the cache is, by context; empty without a bundle
// Bits against KL as points; where all methods of a comparison take equal bytes, KL as sorted bars instead. Empty with
// fewer than two methods.
std::string size_plots(const VerifyReport& report);
std::string kl_bars(const VerifyReport& report, std::vector<const MethodReport*> methods, const std::string& caption);
std::string spectrum_plots(const VerifyReport& report);  // of channels before and after the rotation; empty without
std::string curve_plots(const VerifyReport& report);     // measured curves and what was chosen; empty without curves
std::string widths_text(const Widths& widths);           // "4-2-1-0"
// The methods that no other beats in bits and KL, by ascending bits.
std::vector<const MethodReport*> pareto_front(const std::vector<const MethodReport*>& methods);

}  // namespace oscar::html
