#include <algorithm>

#include "base/files.h"
#include "report/html/parts.h"
#include "report/number_text.h"

namespace oscar::html {
namespace {

std::string cell(const std::string& text, const char* css = nullptr) {
  return (css ? "<td class=\"" + std::string(css) + "\">" : "<td>") + text + "</td>";
}

std::string verdict_cell(std::optional<bool> pass) {
  if (!pass) return cell("not run", "faint");
  return *pass ? cell("pass", "pass") : cell("FAIL", "fail");
}

std::string task_summary(const MethodReport& method) {
  std::string text;
  for (const TaskScore& t : method.tasks) {
    if (!text.empty()) text += "<br>";
    text += escape(t.task) + " " + std::to_string(t.length) + ": " + (t.score ? share_text(t) : "unsolved by BF16");
  }
  return text.empty() ? "&ndash;" : text;
}

// Whether the report's rows, except BF16, differ in this member.
bool varies(const VerifyReport& report, std::string MethodReport::*of) {
  const std::string* first = nullptr;
  for (const MethodReport& m : report.methods) {
    if (!m.quantized) continue;
    if (first != nullptr && *first != m.*of) return true;
    first = &(m.*of);
  }
  return false;
}

// The line under the name that distinguishes rows of one method.
std::string row_note(const VerifyReport& report, const MethodReport& m) {
  std::string note = m.candidate() ? "evaluated" : m.evaluated ? "beside it" : "";
  const auto add = [&](const std::string& text) { note += (note.empty() ? "" : ", ") + text; };
  if (m.quantized && varies(report, &MethodReport::comparison)) add(m.comparison);
  if (varies(report, &MethodReport::path)) add(m.path);
  return note.empty() ? "" : " <span class=\"faint\">(" + escape(note) + ")</span>";
}

// The name, which a narrow window breaks only where it is long.
std::string whole_name(const std::string& name) {
  constexpr std::size_t kWhole = 14;
  return name.size() > kWhole ? escape(name) : "<span class=\"whole\">" + escape(name) + "</span>";
}

std::string name_cell(const VerifyReport& report, const MethodReport& m) {
  return "<th scope=\"row\"><span class=\"swatch " + series_class(report, m) + "\"></span>" + whole_name(m.id) +
         row_note(report, m) + "</th>";
}

// The deciding numbers.
std::string quality_cells(const QualityMetrics& q) {
  return cell(significant(q.kl.mean, 3) + " &plusmn; " + half_width(q.kl.mean, q.kl.interval)) +
         cell(fixed(q.ppl_ratio, 4) + " &plusmn; " + half_width(q.ppl_ratio, q.ppl_ratio_interval)) +
         cell(significant(q.ppl, 5)) + cell(percent(q.same_top1, 2) + "%");
}

std::string method_row(const VerifyReport& report, const MethodReport& m) {
  std::string row =
      (m.evaluated ? "<tr class=\"evaluated\">" : "<tr>") + name_cell(report, m) + quality_cells(m.quality);
  row += cell(m.bits_per_element > 0 ? fixed(m.bits_per_element, 2) : "&ndash;");
  row += cell(m.allocated_bytes > 0 ? escape(format_bytes(m.allocated_bytes)) : "&ndash;") +
         cell(m.quantized ? smaller_text(report, m) : "&ndash;");
  row += m.passes_gates ? verdict_cell(m.passes_gates) : cell("&ndash;");
  return row + cell(task_summary(m), "text") + "</tr>\n";
}

std::string detail_row(const VerifyReport& report, const MethodReport& m) {
  const QualityMetrics& q = m.quality;
  std::string row = (m.evaluated ? "<tr class=\"evaluated\">" : "<tr>") + name_cell(report, m);
  for (const double value : {q.kl.median, q.kl.p90, q.kl.p95, q.kl.p99, q.kl.p999, q.kl.max}) {
    row += cell(significant(value, 3));
  }
  row += cell(growth_text(m)) + cell(fixed(q.ln_ppl_correlation, 4)) + cell(significant(q.delta_p.rms, 3) + "%");
  const std::string settings = escape(m.settings) + (m.comparison.empty() ? "" : " (" + escape(m.comparison) + ")");
  return row + cell(m.quantized ? settings : "&ndash;", "text wrap") + "</tr>\n";
}

}  // namespace

std::string verdict_banner(const VerifyReport& report) {
  std::string failures, sentences;
  for (const GateResult& g : report.gates) {
    if (!g.pass && g.decides) failures += "<li>Gate " + escape(gate_text(report, g)) + "</li>";
  }
  for (const SelfCheck& c : report.checks) {
    if (!c.pass.value_or(true)) failures += "<li>Self check " + escape(c.name) + ": " + escape(c.detail) + "</li>";
  }
  for (const Verdict& v : verdicts(report)) {
    const char* css = !v.pass ? "" : *v.pass ? " pass" : " fail";
    sentences += "<p class=\"verdict" + std::string(css) + "\">" + escape(v.sentence) + ".</p>";
  }
  for (const std::string& sentence : recall_sentences(report)) sentences += "<p>" + escape(sentence) + ".</p>";
  std::string steps;
  for (const std::string& step : report.steps) steps += "<li>" + escape(step) + "</li>";
  if (!steps.empty()) steps = "<p>What to try:</p><ul>" + steps + "</ul>";
  if (!failures.empty()) {
    return "<div class=\"banner fail\" role=\"status\"><strong>&#x2717; FAIL</strong>" + sentences + "<ul>" + failures +
           "</ul>" + steps + "</div>\n";
  }
  if (report.gates.empty()) {
    return "<div class=\"banner note\" role=\"status\"><strong>No gate was set.</strong> All self checks that ran "
           "passed." +
           sentences + "</div>\n";
  }
  return "<div class=\"banner pass\" role=\"status\"><strong>&#x2713; PASS</strong> Every gate of what was evaluated "
         "and every self check that ran passed." +
         sentences + "</div>\n";
}

std::string memory_line(const VerifyReport& report) {
  std::string text;
  for (const MethodReport& m : report.methods) {
    if (!m.evaluated || m.ratios.empty() || m.path != report.methods.front().path) continue;
    text += "<p>Cache of one sequence with " + escape(m.id) + ", against BF16: ";
    for (std::size_t i = 0; i < m.ratios.size(); ++i) {
      text += (i == 0 ? "" : ", ") + fixed(m.ratios[i].ratio, 1) + " times smaller at " + grouped(m.ratios[i].context) +
              " tokens";
    }
    text += ".</p>\n";
  }
  return text;
}

std::string method_table(const VerifyReport& report) {
  std::string text = "<p>KL in nats. Bits: per element of " + element_text(report) + " at context " +
                     std::to_string(report.scoring.context) +
                     ", the full-precision windows of each method included. Bytes: "
                     "pages and windows of one sequence, all layers. &plusmn;: " +
                     escape(interval_note(report)) + (report.noise ? ". Noise: " + escape(noise_text(report)) : "") +
                     ". Growth: KL over the last quarter of the scored positions over that of the second.</p>\n";
  std::string table =
      "<table class=\"wide\"><caption><span>Each method against the BF16 cache on the same tokens</span>"
      "</caption><thead><tr><th scope=\"col\">method</th>";
  for (const char* name :
       {"KL mean &plusmn;95%", "PPL ratio &plusmn;95%", "PPL", "same top", "bits", "bytes", "smaller", "gates"}) {
    table += std::string("<th scope=\"col\">") + name + "</th>";
  }
  table += "<th scope=\"col\" class=\"text\">tasks</th></tr></thead><tbody>\n";
  for (const MethodReport& m : report.methods) table += method_row(report, m);
  text += framed(table + "</tbody></table>", "methods") + memory_line(report);
  std::string details =
      "<table class=\"wide\"><caption><span>KL over tokens, growth with length, and how each method ran</span>"
      "</caption><thead><tr><th scope=\"col\">method</th>";
  for (const char* name : {"median", "90%", "95%", "99%", "99.9%", "max", "growth", "ln PPL cor.", "RMS &Delta;p"}) {
    details += std::string("<th scope=\"col\">") + name + "</th>";
  }
  details += "<th scope=\"col\" class=\"text\">windows and groups</th></tr></thead><tbody>\n";
  for (const MethodReport& m : report.methods) details += detail_row(report, m);
  text += framed(details + "</tbody></table>", "details of methods");
  if (report.target_bits) {
    text += "<p>Comparison at equal bytes: every method within 2 % of the bytes of " + fixed(*report.target_bits, 2) +
            " bits per element, by its own windows and groups.</p>\n";
  }
  for (const LeftOut& l : report.left_out) {
    text += "<p class=\"faint\">Left out: " + escape(l.id) + " (" + escape(l.comparison) + "): " + escape(l.reason) +
            "</p>\n";
  }
  return text;
}

std::string text_table(const VerifyReport& report) {
  if (report.texts.empty()) return "";
  std::string text =
      "<table><caption><span>Each text by itself</span></caption><thead><tr>"
      "<th scope=\"col\">method</th><th scope=\"col\" class=\"text\">text</th>";
  for (const char* name : {"KL mean &plusmn;95%", "PPL ratio &plusmn;95%", "PPL", "same top", "KL 99.9%"}) {
    text += std::string("<th scope=\"col\">") + name + "</th>";
  }
  text += "</tr></thead><tbody>\n";
  for (const MethodReport& m : report.methods) {
    if (!m.evaluated) continue;
    for (const TextQuality& t : m.texts) {
      text += "<tr>" + name_cell(report, m) + cell(escape(t.text), "text") + quality_cells(t.quality) +
              cell(significant(t.quality.kl.p999, 3)) + "</tr>\n";
    }
  }
  return framed(text + "</tbody></table>", "each text");
}

std::string gate_table(const VerifyReport& report) {
  std::string text =
      "<table><caption><span>Gates test the bundle's method; self-checks test the measurement.</span>"
      "</caption><thead><tr><th scope=\"col\">check</th><th scope=\"col\" class=\"text\">what was found</th>"
      "<th scope=\"col\">value</th><th scope=\"col\">limit</th><th scope=\"col\">result</th></tr></thead><tbody>\n";
  const auto number = [](const std::optional<double>& v) { return v ? significant(*v, 5) : std::string("&ndash;"); };
  for (const GateResult& g : report.gates) {
    text += "<tr><th scope=\"row\">" + escape(g.name) + "</th>" +
            cell("gate on " + escape(g.method) + " (" + escape(g.path) + ")" +
                     escape((g.text.empty() ? "" : ", " + g.text) + (g.decides ? "" : ", beside it") +
                            (g.reason.empty() ? "" : ": " + g.reason)),
                 "text wrap") +
            cell(number(g.value)) + cell(significant(g.limit, 5)) + verdict_cell(g.pass) + "</tr>\n";
  }
  for (const SelfCheck& c : report.checks) {
    text += "<tr><th scope=\"row\">" + escape(c.name) + "</th>" + cell(escape(c.detail), "text wrap") +
            cell(number(c.value)) + cell(number(c.limit)) + verdict_cell(c.pass) + "</tr>\n";
  }
  return framed(text + "</tbody></table>", "gates and self checks");
}

}  // namespace oscar::html
