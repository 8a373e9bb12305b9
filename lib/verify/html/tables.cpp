#include <algorithm>

#include "base/files.h"
#include "verify/html/parts.h"
#include "verify/number_text.h"

namespace oscar::html {
namespace {

std::string cell(const std::string& text, const char* css = nullptr) {
  return (css ? "<td class=\"" + std::string(css) + "\">" : "<td>") + text + "</td>";
}

std::string verdict_cell(std::optional<bool> pass) {
  if (!pass) return cell("not run", "faint");
  return *pass ? cell("pass", "pass") : cell("FAIL", "fail");
}

std::string with_interval(const std::string& value, const std::optional<Interval>& interval, int digits) {
  if (!interval) return value;
  return "<span title=\"interval by bootstrap over sequences: " + significant(interval->low, digits) + " to " +
         significant(interval->high, digits) + "\">" + value + "</span>";
}

std::string task_summary(const MethodReport& method) {
  std::string text;
  for (const TaskScore& t : method.tasks) {
    if (!text.empty()) text += "<br>";
    text += escape(t.task) + " " + std::to_string(t.length) + ": " +
            (t.score ? percent(*t.score, 0) + "% &plusmn; " + percent(t.standard_error, 1) : "unsolved by BF16");
  }
  return text.empty() ? "&ndash;" : text;
}

std::string method_row(const VerifyReport& report, const MethodReport& m) {
  const QualityMetrics& q = m.quality;
  std::string row = m.judged ? "<tr class=\"judged\">" : "<tr>";
  row += "<th scope=\"row\"><span class=\"swatch " + series_class(report, m) + "\"></span>" + escape(m.id) +
         (m.judged ? " <span class=\"faint\">(judged)</span>" : "") + "</th>";
  row += cell(m.quantised ? escape(m.comparison) : "&ndash;", "text") + cell(escape(m.settings), "text");
  row += cell(escape(m.path), "text");
  row += cell(fixed(m.bits_per_element, 2));
  row += cell(escape(format_bytes(m.allocated_bytes)));
  row += cell(with_interval(significant(q.kl.mean, 3), q.kl.interval, 3) + " &plusmn; " +
              significant(q.kl.standard_error, 2));
  row += cell(significant(q.kl.median, 3)) + cell(significant(q.kl.p90, 3)) + cell(significant(q.kl.p95, 3)) +
         cell(significant(q.kl.p99, 3));
  row += cell(significant(q.kl.p999, 3)) + cell(significant(q.kl.max, 3));
  row += cell(significant(q.ppl, 5));
  row += cell(with_interval(fixed(q.ppl_ratio, 4), q.ppl_ratio_interval, 5) + " &plusmn; " +
              significant(q.ppl_ratio_error, 2));
  row += cell(fixed(q.ln_ppl_correlation, 4)) + cell(significant(q.delta_p.rms, 3) + "%");
  row += cell(percent(q.same_top1, 2) + "%");
  row += cell(task_summary(m), "text");
  row += m.passes_gates ? verdict_cell(m.passes_gates) : cell("&ndash;");
  return row + "</tr>\n";
}

// The tint says the share at a glance; the numbers in the cell say it to everyone.
std::string share_cell(std::int64_t solved, std::int64_t of) {
  if (of == 0) return "<td class=\"cell\">&ndash;</td>";
  const double share = static_cast<double>(solved) / static_cast<double>(of);
  return "<td class=\"cell\" style=\"background: color-mix(in srgb, var(--good-ground) " + percent(share, 0) +
         "%, var(--bad-ground))\">" + std::to_string(solved) + "/" + std::to_string(of) + "</td>";
}

// Depth down, length across, of one method on one task.
std::string needle_grid(const MethodReport& m, const std::string& task) {
  std::vector<const TaskScore*> lengths;
  for (const TaskScore& t : m.tasks) {
    if (t.task == task && !t.depths.empty()) lengths.push_back(&t);
  }
  std::string text = "<div class=\"scroll\"><table><caption>" + escape(task) + ", " + escape(series_name(m)) +
                     "</caption><thead><tr><th scope=\"col\" class=\"text\">depth</th>";
  for (const TaskScore* t : lengths) text += "<th scope=\"col\">" + std::to_string(t->length) + "</th>";
  text += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < lengths.front()->depths.size(); ++i) {
    const DepthScore& d = lengths.front()->depths[i];
    text += "<tr><th scope=\"row\">" + percent(d.from, 0) + " to " + percent(d.to, 0) + "%</th>";
    for (const TaskScore* t : lengths) {
      text += i < t->depths.size() ? share_cell(t->depths[i].solved, t->depths[i].prompts) : "<td class=\"cell\"></td>";
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string needle_table(const VerifyReport& report, const TaskScore& shape) {
  std::string head = "<tr><th scope=\"col\" class=\"text\">depth of the needle</th>";
  std::string total = "<tr><th scope=\"row\">all depths</th>";
  std::vector<std::string> rows;
  for (const DepthScore& d : shape.depths) {
    rows.push_back("<tr><th scope=\"row\">" + percent(d.from, 0) + " to " + percent(d.to, 0) + "%</th>");
  }
  for (const MethodReport& m : report.methods) {
    for (const TaskScore& t : m.tasks) {
      if (t.task != shape.task || t.length != shape.length || t.depths.size() != shape.depths.size()) continue;
      head += "<th scope=\"col\">" + escape(series_name(m)) + "</th>";
      total += cell(std::to_string(t.solved) + "/" + std::to_string(t.n), "cell");
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const DepthScore& d = t.depths[i];
        rows[i] += share_cell(d.solved, d.prompts);
      }
    }
  }
  std::string body;
  for (const std::string& row : rows) body += row + "</tr>\n";
  return "<div class=\"scroll\"><table><caption>" + escape(shape.task) + ", " + std::to_string(shape.length) +
         " tokens: solved prompts of those that the BF16 cache solves (" + std::to_string(shape.n) + " of " +
         std::to_string(shape.prompts) + " written)</caption><thead>" + head + "</tr></thead><tbody>\n" + body + total +
         "</tr></tbody></table></div>\n";
}

}  // namespace

std::string verdict_banner(const VerifyReport& report) {
  std::string failures;
  for (const GateResult& g : report.gates) {
    if (g.pass) continue;
    failures += "<li>Gate " + escape(g.name) + " of " + escape(g.method) + " (" + escape(g.path) +
                "): " + (g.value ? significant(*g.value, 5) : "not measured") + ", limit " + significant(g.limit, 5) +
                "</li>";
  }
  for (const SelfCheck& c : report.checks) {
    if (!c.pass.value_or(true)) failures += "<li>Self check " + escape(c.name) + ": " + escape(c.detail) + "</li>";
  }
  if (!failures.empty()) {
    return "<div class=\"banner fail\" role=\"status\"><strong>&#x2717; FAIL</strong><ul>" + failures + "</ul></div>\n";
  }
  if (report.gates.empty()) {
    return "<div class=\"banner note\" role=\"status\"><strong>No gate was set.</strong> All self checks that ran "
           "passed.</div>\n";
  }
  return "<div class=\"banner pass\" role=\"status\"><strong>&#x2713; PASS</strong> Every gate and every self check "
         "that ran passed.</div>\n";
}

std::string method_table(const VerifyReport& report) {
  std::string text =
      "<p>KL in nats. Bits: per element of K and V at context " + std::to_string(report.scoring.context) +
      ", with the BF16 windows of " + std::to_string(report.sink) + " and " + std::to_string(report.recent) +
      " tokens. Bytes: allocated for one sequence, all layers. &plusmn;: standard error.</p>\n"
      "<div class=\"scroll\"><table class=\"sortable\"><caption>Each method against the BF16 cache on the same tokens"
      "</caption><thead><tr><th scope=\"col\">method</th>";
  for (const char* name : {"compare", "settings", "path"}) {
    text += std::string("<th scope=\"col\" class=\"text\">") + name + "</th>";
  }
  for (const char* name : {"bits", "bytes", "KL mean", "median", "90%", "95%", "99%", "99.9%", "max", "PPL",
                           "PPL ratio", "ln PPL cor.", "RMS &Delta;p", "same top"}) {
    text += std::string("<th scope=\"col\">") + name + "</th>";
  }
  text += "<th scope=\"col\" class=\"text\">tasks</th><th scope=\"col\">gates</th></tr></thead><tbody>\n";
  for (const MethodReport& m : report.methods) text += method_row(report, m);
  text += "</tbody></table></div>\n";
  if (report.target_bits) {
    text += "<p>Comparison at equal bytes: every method at " + fixed(*report.target_bits, 2) +
            " bits per element by its own windows and groups.</p>\n";
  }
  for (const LeftOut& l : report.left_out) {
    text += "<p class=\"faint\">Left out: " + escape(l.id) + " (" + escape(l.comparison) + "): " + escape(l.reason) +
            "</p>\n";
  }
  return text;
}

std::string gate_table(const VerifyReport& report) {
  std::string text =
      "<div class=\"scroll\"><table><caption>Gates judge the bundle's method; self checks judge the measurement."
      "</caption><thead><tr><th scope=\"col\">check</th><th scope=\"col\" class=\"text\">what was found</th>"
      "<th scope=\"col\">value</th><th scope=\"col\">limit</th><th scope=\"col\">result</th></tr></thead><tbody>\n";
  const auto number = [](const std::optional<double>& v) { return v ? significant(*v, 5) : std::string("&ndash;"); };
  for (const GateResult& g : report.gates) {
    text += "<tr><th scope=\"row\">" + escape(g.name) + "</th>" +
            cell("gate on " + escape(g.method) + " (" + escape(g.path) + ")", "text wrap") + cell(number(g.value)) +
            cell(significant(g.limit, 5)) + verdict_cell(g.pass) + "</tr>\n";
  }
  for (const SelfCheck& c : report.checks) {
    text += "<tr><th scope=\"row\">" + escape(c.name) + "</th>" + cell(escape(c.detail), "text wrap") +
            cell(number(c.value)) + cell(number(c.limit)) + verdict_cell(c.pass) + "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string needle_tables(const VerifyReport& report) {
  std::string text;
  std::vector<std::string> done;
  for (const MethodReport& m : report.methods) {
    for (const TaskScore& t : m.tasks) {
      const std::string key = t.task + " " + std::to_string(t.length);
      if (std::find(done.begin(), done.end(), key) != done.end()) continue;
      done.push_back(key);
      text += needle_table(report, t);
    }
  }
  return text;
}

std::string needle_grids(const VerifyReport& report) {
  std::vector<std::string> tasks;
  for (const MethodReport& m : report.methods) {
    for (const TaskScore& t : m.tasks) {
      const auto lengths = std::count_if(m.tasks.begin(), m.tasks.end(), [&](const TaskScore& other) {
        return other.task == t.task && !other.depths.empty();
      });
      if (lengths > 1 && std::find(tasks.begin(), tasks.end(), t.task) == tasks.end()) tasks.push_back(t.task);
    }
  }
  std::string text;
  for (const std::string& task : tasks) {
    for (const MethodReport& m : report.methods) {
      if (std::any_of(m.tasks.begin(), m.tasks.end(), [&](const TaskScore& t) { return t.task == task; })) {
        text += needle_grid(m, task);
      }
    }
  }
  if (text.empty()) return "";
  return "<p>Depth of what is asked for, by length of the prompt in tokens: answers found of those that BF16 "
         "finds.</p>\n"
         "<div class=\"grids\">" +
         text + "</div>\n";
}

}  // namespace oscar::html
