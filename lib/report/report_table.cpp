// The result table on the terminal.
#include <algorithm>
#include <map>
#include <set>

#include "base/columns.h"
#include "base/foreign_text.h"
#include "report/number_text.h"
#include "report/report.h"

namespace oscar {
namespace {

using Row = TableRow;

constexpr std::size_t kNameColumns = 28;  // a bundle's row has the name of its folder

// Of a row's method; two names that are equal when shortened get numbers.
std::vector<std::string> row_names(const VerifyReport& report) {
  std::map<std::string, std::set<std::string>> same;  // shortened -> names
  for (const MethodReport& m : report.methods) same[shortened(escape_text(m.id), kNameColumns)].insert(m.id);
  std::vector<std::string> names;
  for (const MethodReport& m : report.methods) {
    std::string name = shortened(escape_text(m.id), kNameColumns);
    const std::set<std::string>& all = same.at(name);
    if (all.size() > 1) name += " #" + std::to_string(1 + std::distance(all.begin(), all.find(m.id)));
    names.push_back(name + (m.candidate() ? " *" : ""));
  }
  return names;
}

std::string verdict(std::optional<bool> pass, bool decides = true) {
  if (!pass) return "-";
  return *pass ? "pass" : decides ? "FAIL" : "fail";
}

std::string ratio_text(double ratio) { return ratio < 100.0 ? fixed(ratio, 3) : significant(ratio, 3); }

std::string bits_text(const MethodReport& m) { return m.bits_per_element > 0 ? fixed(m.bits_per_element, 2) : "-"; }

// Columns that only some reports need.
struct Columns {
  bool compares, both, gated, details;
};

Row row_of(const VerifyReport& report, const MethodReport& m, const std::string& name, const Columns& columns) {
  const QualityMetrics& q = m.quality;
  Row row = {name};
  if (columns.compares) row.push_back(m.quantized ? m.comparison : "");
  if (columns.both) row.push_back(m.path);
  row.insert(row.end(), {bits_text(m), smaller_text(report, m), significant(q.kl.mean, 3),
                         half_width(q.kl.mean, q.kl.interval), significant(q.ppl, 4), ratio_text(q.ppl_ratio),
                         half_width(q.ppl_ratio, q.ppl_ratio_interval), percent(q.same_top1, 2) + "%"});
  if (columns.details) {
    row.insert(row.end(),
               {m.allocated_bytes > 0 ? grouped(static_cast<std::int64_t>(m.allocated_bytes)) : "-",
                significant(q.kl.median, 3), growth_text(m), significant(q.kl.p99, 3), significant(q.kl.max, 3)});
  }
  if (columns.gated) row.push_back(verdict(m.passes_gates, !m.beside));
  return row;
}

// Without the columns that are needed least, if the table is wider than a terminal; -v prints all.
std::string format_narrow(std::vector<Row> rows, std::size_t names) {
  for (const char* least : {"+-95%", "smaller", "PPL"}) {
    const std::string text = table_text(rows, names);
    if (display_width(text.substr(0, text.find('\n'))) <= kColumns) return text;
    const auto last = std::find(rows[0].rbegin(), rows[0].rend(), least);
    const std::ptrdiff_t column = rows[0].rend() - last - 1;
    for (Row& row : rows) row.erase(row.begin() + column);
  }
  return table_text(rows, names);
}

// Rows of bundles on each of several texts.
std::string text_rows(const VerifyReport& report) {
  std::vector<Row> rows = {{"method", "text", "KL mean", "+-95%", "99.9%", "PPL", "ratio", "+-95%", "same top"}};
  const std::vector<std::string> names = row_names(report);
  for (std::size_t i = 0; i < report.methods.size(); ++i) {
    if (!report.methods[i].evaluated) continue;
    for (const TextQuality& t : report.methods[i].texts) {
      const QualityMetrics& q = t.quality;
      rows.push_back({names[i], shortened(escape_text(t.text), kNameColumns), significant(q.kl.mean, 3),
                      half_width(q.kl.mean, q.kl.interval), significant(q.kl.p999, 3), significant(q.ppl, 4),
                      ratio_text(q.ppl_ratio), half_width(q.ppl_ratio, q.ppl_ratio_interval),
                      percent(q.same_top1, 2) + "%"});
    }
  }
  return rows.size() > 1 ? format_narrow(std::move(rows), 2) : "";
}

// What each bundle is.
std::string bundle_lines(const VerifyReport& report) {
  std::string text;
  if (report.served) text += wrapped("* evaluated: " + std::string(kServedRow) + ", " + served_text(*report.served));
  for (const BundleFacts& b : report.bundles) {
    if (b.kind == kFittedKind) {
      text += wrapped("fitted for comparison: " + b.row + ", from " + b.source);
      continue;
    }
    text += wrapped((&b == &report.bundles.front() && !report.served ? "* evaluated: " : "beside it: ") + b.row +
                    (b.simulated() ? ", in simulation: no engine serves it" : " as " + b.served_as + " serves it"));
    for (const std::string& change : b.served_changes) {
      text += wrapped("changed by " + b.served_as + ": " + change);
    }
  }
  return text;
}

// Next steps, and the verdict as the last line.
std::string closing_lines(const VerifyReport& report) {
  std::string text;
  if (!report.undecided.empty()) text += wrapped("gate: " + report.undecided);
  for (const std::string& step : report.steps) text += wrapped("next: " + step);
  for (const std::string& sentence : recall_sentences(report)) text += wrapped(sentence);
  for (const std::string& sentence : verdict_sentences(report)) text += wrapped(sentence);
  return text;
}

}  // namespace

std::vector<const TaskScore*> task_columns(const VerifyReport& report) {
  std::vector<const TaskScore*> columns;
  for (const MethodReport& m : report.methods) {
    for (const TaskScore& t : m.tasks) {
      const auto same = [&](const TaskScore* c) { return c->task == t.task && c->length == t.length; };
      if (std::none_of(columns.begin(), columns.end(), same)) columns.push_back(&t);
    }
  }
  return columns;
}

std::string share_text(const TaskScore& t) {
  return percent(*t.score, 0) + "% (" + percent(t.interval.low, 0) + " to " + percent(t.interval.high, 0) + ") of " +
         std::to_string(t.n);
}

std::string element_text(const VerifyReport& report) {
  return report.model.rope_dim > 0 ? "the latent and its channels with RoPE" : "K and V";
}

std::string growth_text(const MethodReport& method) {
  const std::optional<KlGrowth> growth = method.quantized ? kl_growth(method.by_position) : std::nullopt;
  return growth ? significant(growth->ratio(), 2) : "-";
}

std::string interval_note(const VerifyReport& report) {
  std::string text = percent(report.bootstrap_level, 0) + "% interval, by bootstrap over the " +
                     std::to_string(report.scoring.sequences) + " sequences";
  if (report.scoring.sequences < 2) text = percent(report.bootstrap_level, 0) + "% interval; one sequence has none";
  if (report.bootstrap_samples < 2) text = percent(report.bootstrap_level, 0) + "% interval; --bootstrap is off";
  if (!task_columns(report).empty()) text += "; of tasks Wilson's binomial interval in brackets";
  return text;
}

std::string distance_note(const BundleFacts& bundle, std::int64_t context) {
  if (bundle.longest_distance == 0 || context <= bundle.longest_distance + 1) return {};
  return bundle.source + " was calibrated on keys up to " + std::to_string(bundle.longest_distance) +
         " tokens before their query, and contexts of " + std::to_string(context) +
         " tokens are scored: calibrate with prompts packed to the contexts that are served (--context)";
}

std::vector<std::string> seen_notes(const VerifyReport& report) {
  std::vector<std::string> notes;
  for (const BundleFacts& b : report.bundles) {
    if (!b.calibration || !b.calibration->seen()) continue;
    notes.push_back(b.calibration->text + " " + b.calibration->reason() + " that " + b.source +
                    " was calibrated on: its figures are better than on unseen text");
  }
  for (const BundleFacts& b : report.bundles) {
    if (std::string note = distance_note(b, report.scoring.context); !note.empty()) notes.push_back(std::move(note));
  }
  return notes;
}

std::string baseline_share(const TaskScore& task) {
  const bool all = task.n == task.references;
  return task.task + " " + std::to_string(task.length) + ": the BF16 cache finds " + std::to_string(task.n) + " of " +
         std::to_string(task.references) + " references" + (all ? "" : "; the others count for no method");
}

namespace {

// details: every column, note and self-check.
std::string report_text(const VerifyReport& report, bool details) {
  const bool compares = std::any_of(report.methods.begin(), report.methods.end(), [](const MethodReport& m) {
    return m.quantized && !m.comparison.empty() && m.comparison != "common";
  });
  const bool both = std::any_of(report.methods.begin(), report.methods.end(),
                                [&](const MethodReport& m) { return m.path != report.methods.front().path; });
  const bool gated = std::any_of(report.methods.begin(), report.methods.end(),
                                 [](const MethodReport& m) { return m.passes_gates.has_value(); });
  Row header = {"method"};
  if (compares) header.emplace_back("compare");
  if (both) header.emplace_back("path");
  const std::size_t names = header.size();
  for (const char* name : {"bits", "smaller", "KL mean", "+-95%", "PPL", "ratio", "+-95%", "same top"}) {
    header.emplace_back(name);
  }
  if (details) header.insert(header.end(), {"bytes/seq", "median", "growth", "p99", "max"});
  if (gated) header.emplace_back("gate");
  std::vector<Row> rows = {header};
  const std::vector<std::string> ids = row_names(report);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    rows.push_back(row_of(report, report.methods[i], ids[i], {compares, both, gated, details}));
  }
  std::string text = details ? table_in_parts(rows, names) : format_narrow(std::move(rows), names);
  text += text_rows(report);
  text += "bits: per element of " + element_text(report) + " at context " + std::to_string(report.scoring.context) +
          ", BF16 windows " + std::to_string(report.sink) + "/" + std::to_string(report.recent) + " included\n";
  text +=
      wrapped("scored: " + grouped(report.scoring.tokens) + " tokens in " + std::to_string(report.scoring.sequences) +
              " sequences, those whose query sees a coded key; KL in nats");
  if (details) {
    text += wrapped("+-95%: " + interval_note(report));
    text += "growth: KL over the last quarter of the scored positions over that of the second\n";
  }
  if (details && report.target_bits) {
    text += "compare bytes: all within 2% of the bytes of " + fixed(*report.target_bits, 2) + " bits per element\n";
  }
  for (const MethodReport& m : report.methods) {
    if (!details || !m.quantized || m.comparison == "common") continue;
    text += wrapped("settings of " + m.id + " (" + m.comparison + ", " + m.path + "): " + m.settings);
  }
  if (report.noise) text += wrapped("noise: " + noise_text(report));
  text += bundle_lines(report);
  for (const std::string& note : seen_notes(report)) text += wrapped("note: " + note);
  for (const MethodReport& m : report.methods) {
    for (const TaskScore& t : m.tasks) {
      text += wrapped(t.task + " " + std::to_string(t.length) + " of " + m.id + " (" + m.path +
                      "): " + (t.score ? share_text(t) : "unsolved by BF16"));
    }
  }
  for (const TaskScore* t : task_columns(report)) text += wrapped(baseline_share(*t));
  for (const LeftOut& l : report.left_out)
    text += wrapped("left out: " + l.id + " (" + l.comparison + "): " + l.reason);
  for (const BaselineChange& c : report.changes) {
    text +=
        wrapped("against " + report.baseline + ", on its " + grouped(report.baseline_tokens) + " tokens: " + c.method +
                " (" + c.path + ") KL " + significant(c.kl_before, 4) + " -> " + significant(c.kl_now, 4) +
                ", PPL ratio " + fixed(c.ppl_ratio_before, 4) + " -> " + fixed(c.ppl_ratio_now, 4));
  }
  for (const GateResult& g : report.gates)
    text += wrapped(verdict(g.pass, g.decides) + "  gate " + gate_text(report, g));
  std::size_t passed = 0, idle = 0;
  for (const SelfCheck& c : report.checks) {
    if (details || !c.pass.value_or(true)) text += wrapped(verdict(c.pass) + "  check " + c.name + ": " + c.detail);
    passed += c.pass.value_or(false) ? 1 : 0, idle += c.pass ? 0 : 1;
  }
  if (!details && !report.checks.empty()) {
    text += "self checks: " + std::to_string(passed) + " passed, " + std::to_string(idle) +
            " had nothing to compare (-v tells which)\n";
  }
  return text + closing_lines(report);
}

}  // namespace

std::string report_table(const VerifyReport& report) { return report_text(report, false); }
std::string report_details(const VerifyReport& report) { return report_text(report, true); }

}  // namespace oscar
