// report.html: one self-contained page.
#include "base/foreign_text.h"
#include "base/markup.h"
#include "report/html/parts.h"
#include "report/number_text.h"
#include "report/report.h"

namespace oscar {
namespace html {

std::string escape(std::string_view text) { return with_entities(escape_text(text)); }

std::string folded(const std::string& summary, const std::string& content) {
  return "<details><summary>" + summary + "</summary>\n" + content + "</details>\n";
}

std::string framed(const std::string& content, const std::string& label) {
  return "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" + label + "\">" + content + "</div>\n";
}

std::string series_class(const VerifyReport& report, const MethodReport& method) {
  std::size_t index = 0;
  while (index < report.methods.size() && &report.methods[index] != &method) ++index;
  return {'s', static_cast<char>('0' + index % 8)};
}

std::string series_name(const MethodReport& method) {
  const bool plain = method.comparison.empty() || method.comparison == "common" || !method.quantized;
  return method.id + " (" + (plain ? "" : method.comparison + ", ") + method.path + ")";
}

std::string provenance(const VerifyReport& r) {
  const auto entry = [](const std::string& term, const std::string& text) {
    return "<dt>" + term + "</dt><dd>" + text + "</dd>\n";
  };
  std::string text = "<dl>\n";
  text += entry("model", escape(r.model.name) + ", " + escape(r.model.architecture) + ", " +
                             std::to_string(r.model.layers) + " layers, " + std::to_string(r.model.query_heads) + "/" +
                             std::to_string(r.model.kv_heads) + " heads of " + std::to_string(r.model.head_dim));
  text += entry("model fingerprint", "<code>" + escape(r.model.fingerprint) + "</code>");
  if (r.served) text += entry(kServedRow, escape(served_text(*r.served)));
  for (const BundleFacts& b : r.bundles) {
    if (b.kind == kFittedKind) {
      text += entry("fitted for comparison", escape(b.row) + ", from " + escape(b.source));
      continue;
    }
    text += entry("bundle", escape(b.source) + " (" + escape(b.method) + ", scope " + escape(b.scope) + ", encoder " +
                                escape(b.encoder) + ")");
    text += entry("served as", escape(b.served_as));
    for (const std::string& change : b.served_changes) text += entry("changed by that form", escape(change));
    text += entry("fitted on", b.model_fingerprint.empty() ? std::string("unknown: the files do not say")
                               : b.fingerprint_matches     ? std::string("this model")
                                                           : std::string("another model"));
    for (const auto& [name, hash] : b.sha256) text += entry(escape(name), "<code>sha256:" + escape(hash) + "</code>");
  }
  text += entry("text", escape(r.text.name) + ", " + grouped(r.text.tokens) +
                            " tokens, <code>sha256:" + escape(r.text.sha256) + "</code>");
  text += entry("sequences", std::to_string(r.scoring.sequences) + " of " + std::to_string(r.scoring.context) +
                                 " tokens, " + grouped(r.scoring.unused_tokens) + " tokens of the text unused");
  text += entry("scored", grouped(r.scoring.tokens) + " tokens, " + percent(r.scoring.fraction, 1) +
                              "% of the positions: those from " + std::to_string(r.scoring.first_position) +
                              " on, whose query sees at least one quantized key");
  text += entry("arithmetic", escape(r.dtype) + " on " + escape(r.device) + ", seed " + std::to_string(r.seed));
  text += entry("intervals", percent(r.bootstrap_level, 0) + "%, " + grouped(r.bootstrap_samples) +
                                 " bootstrap samples over sequences");
  text += entry("tool", "oscar-verify " + escape(r.tool_version));
  return text + "</dl>\n<p>The command that repeats this report:</p>\n<pre>" + escape(r.command) + "</pre>\n";
}

}  // namespace html

std::string report_html(const VerifyReport& report) {
  const std::string title = "KV-cache quality of " + html::escape(report.model.name);
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\""
      "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
      "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      title + "</title>\n<style>" + std::string(page_css) + "</style>\n</head>\n<body>\n<main>\n<h1>" + title +
      "</h1>\n";
  page += "<p class=\"faint\">" + html::escape(report.date.empty() ? "" : report.date + ": ") +
          std::to_string(report.scoring.sequences) + " sequences of " + std::to_string(report.scoring.context) +
          " tokens of " + html::escape(report.text.name) + "</p>\n";
  page += html::verdict_banner(report);
  for (const std::string& note : seen_notes(report)) {
    page += "<div class=\"banner note\" role=\"note\">" + html::escape(note) + "</div>\n";
  }
  page += "<h2>Methods</h2>\n" + html::method_table(report);
  page += html::text_table(report);
  if (const std::string table = html::position_table(report); !table.empty()) {
    page += "<h2>KL by position</h2>\n" + table;
  }
  if (const std::string tables = html::layer_tables(report); !tables.empty()) {
    page += "<h2>Errors by layer</h2>\n" + tables;
  }
  for (const TaskScore* t : task_columns(report)) page += "<p>" + html::escape(baseline_share(*t)) + "</p>\n";
  page += "<h2>Gates and self checks</h2>\n" + html::gate_table(report);
  page += "<h2>Provenance</h2>\n" + html::provenance(report);
  return page + "</main>\n</body>\n</html>\n";
}

}  // namespace oscar
