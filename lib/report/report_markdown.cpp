// A short summary for a model card or a pull-request comment, and the gates and checks as JUnit XML.
#include "base/markup.h"
#include "report/html/parts.h"
#include "report/number_text.h"
#include "report/report.h"

namespace oscar {
namespace {

std::string row_of(const MethodReport& m) {
  const QualityMetrics& q = m.quality;
  std::string row = "| " + markdown_text(m.id) + (m.candidate() ? " (evaluated)" : "") + " | " +
                    (m.quantized ? m.comparison : "") + " | " + m.path + " | " +
                    (m.bits_per_element > 0 ? fixed(m.bits_per_element, 2) : "-") + " | " +
                    (m.allocated_bytes > 0 ? grouped(static_cast<std::int64_t>(m.allocated_bytes)) : "-") + " | " +
                    significant(q.kl.mean, 3) + " ± " + half_width(q.kl.mean, q.kl.interval) + " | " +
                    significant(q.kl.p99, 3) + " | " + growth_text(m) + " | " + fixed(q.ppl_ratio, 4) + " ± " +
                    half_width(q.ppl_ratio, q.ppl_ratio_interval) + " | " + percent(q.same_top1, 2) + "% | ";
  std::string tasks;
  for (const TaskScore& t : m.tasks) {
    tasks += (tasks.empty() ? "" : ", ") + t.task + " " + std::to_string(t.length) + ": " +
             (t.score ? share_text(t) : "unsolved by BF16");
  }
  return row + (tasks.empty() ? "-" : markdown_text(tasks)) + " |\n";
}

// Rows of bundles on each of several texts.
std::string text_lines(const VerifyReport& r) {
  if (r.texts.empty()) return "";
  std::string text =
      "\n| method | text | KL mean (nats) ± 95% | KL 99.9% | PPL ratio ± 95% | same top "
      "|\n|---|---|---:|---:|---:|---:|\n";
  for (const MethodReport& m : r.methods) {
    if (!m.evaluated) continue;
    for (const TextQuality& t : m.texts) {
      const QualityMetrics& q = t.quality;
      text += "| " + markdown_text(m.id) + " | " + markdown_text(t.text) + " | " + significant(q.kl.mean, 3) + " ± " +
              half_width(q.kl.mean, q.kl.interval) + " | " + significant(q.kl.p999, 3) + " | " + fixed(q.ppl_ratio, 4) +
              " ± " + half_width(q.ppl_ratio, q.ppl_ratio_interval) + " | " + percent(q.same_top1, 2) + "% |\n";
    }
  }
  return text;
}

std::string verdict_of(const VerifyReport& r) {
  if (!r.pass) return "**FAIL**";
  return r.gates.empty() ? "no gate set, self checks passed" : "**pass**";
}

std::string junit_case(const std::string& group, const std::string& name, std::optional<bool> pass,
                       const std::string& detail) {
  std::string text = "  <testcase classname=\"oscar-verify." + group + "\" name=\"" + html::escape(name) + "\"";
  if (!pass) return text + "><skipped message=\"" + html::escape(detail) + "\"/></testcase>\n";
  if (*pass) return text + "/>\n";
  return text + "><failure message=\"" + html::escape(detail) + "\"/></testcase>\n";
}

// The form in which a bundle was evaluated.
std::string served_note(const BundleFacts& b) {
  std::string note = markdown_code(b.row);
  if (b.kind == kFittedKind) {
    return note.insert(0, 1, '\n').append(" was fitted for comparison, from " + markdown_code(b.source) + ".\n");
  }
  if (b.simulated())
    return note.insert(0, 1, '\n').append(" is evaluated in simulation: no engine serves it as it is.\n");
  note.append(" is evaluated as ").append(markdown_text(b.served_as)).append(" serves it");
  const char* separator = ": ";
  for (const std::string& change : b.served_changes) {
    note.append(separator).append(markdown_text(change));
    separator = "; ";
  }
  return note.insert(0, 1, '\n').append(".\n");
}

}  // namespace

std::string report_markdown(const VerifyReport& r) {
  std::string text = "## KV-cache quality of " + markdown_text(r.model.name) + "\n\n" +
                     std::to_string(r.scoring.sequences) + " sequences of " + grouped(r.scoring.context) +
                     " tokens of " + markdown_code(r.text.name) + ", " + grouped(r.scoring.tokens) +
                     " tokens scored against the BF16 cache: " + verdict_of(r) + "\n\n";
  for (const std::string& sentence : verdict_sentences(r)) text += markdown_text(sentence) + ".\n\n";
  for (const std::string& step : r.steps) text += "- next: " + markdown_text(step) + "\n";
  if (!r.steps.empty()) text += "\n";
  text +=
      "| method | compare | path | bits | bytes/sequence | KL mean (nats) ± 95% | KL 99% | growth | PPL ratio ± 95% | "
      "same top | tasks |\n";
  text += "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|\n";
  for (const MethodReport& m : r.methods) text += row_of(m);
  text += text_lines(r);
  if (r.served) text += "\n" + markdown_code(kServedRow) + " is " + markdown_text(served_text(*r.served)) + ".\n";
  for (const BundleFacts& b : r.bundles) text += served_note(b);
  text += "\nBits: per element of " + element_text(r) +
          " at this context, BF16 windows included. ±: " + interval_note(r) +
          ". Growth: KL over the last quarter of the scored positions over that of the second.\n";
  if (r.noise) text += "Noise: " + markdown_text(noise_text(r)) + ".\n";
  if (r.target_bits) {
    text +=
        "Compare `bytes`: every method within 2% of the bytes of " + fixed(*r.target_bits, 2) + " bits per element.\n";
  }
  for (const MethodReport& m : r.methods) {
    if (m.quantized && m.comparison != "common") {
      text += "- settings of " + markdown_text(m.id) + " (" + m.comparison + ", " + m.path +
              "): " + markdown_text(m.settings) + "\n";
    }
  }
  for (const LeftOut& l : r.left_out)
    text += "- left out: " + markdown_text(l.id) + " (" + l.comparison + "): " + markdown_text(l.reason) + "\n";
  for (const std::string& note : seen_notes(r)) text += "- **note**: " + markdown_text(note) + "\n";
  for (const TaskScore* t : task_columns(r)) text += "- " + markdown_text(baseline_share(*t)) + "\n";
  if (!r.gates.empty() || !r.checks.empty()) text += "\n";
  for (const GateResult& g : r.gates)
    text += std::string(g.pass      ? "- pass: "
                        : g.decides ? "- **FAIL**: "
                                    : "- would fail: ") +
            markdown_text(gate_text(r, g)) + "\n";
  for (const SelfCheck& c : r.checks) {
    const char* word = !c.pass ? "- not run: " : *c.pass ? "- pass: " : "- **FAIL**: ";
    text += word + c.name + ": " + markdown_text(c.detail) + "\n";
  }
  if (!r.baseline.empty()) {
    text += "\nAgainst " + markdown_code(r.baseline) + ", on the " + grouped(r.baseline_tokens) +
            " tokens that it scored:\n\n| method | compare | path | KL before | KL now | PPL ratio before | PPL ratio "
            "now |\n"
            "|---|---|---|---:|---:|---:|---:|\n";
    for (const BaselineChange& c : r.changes) {
      text += "| " + markdown_text(c.method) + " | " + c.comparison + " | " + c.path + " | " +
              significant(c.kl_before, 4) + " | " + significant(c.kl_now, 4) + " | " + fixed(c.ppl_ratio_before, 4) +
              " | " + fixed(c.ppl_ratio_now, 4) + " |\n";
    }
  }
  return text + "\nRepeat: " + markdown_code(r.command) + "\n";
}

std::string report_junit(const VerifyReport& r) {
  std::string cases;
  int failures = 0, skipped = 0, count = 0;
  const auto add = [&](const std::string& group, const std::string& name, std::optional<bool> pass,
                       const std::string& detail) {
    ++count;
    failures += pass && !*pass ? 1 : 0;
    skipped += pass ? 0 : 1;
    cases += junit_case(group, name, pass, detail);
  };
  for (const GateResult& g : r.gates) {
    const bool shown = !g.pass && !g.decides;  // a gate of a row beside the candidate cannot fail the run
    add("gate", g.name + " " + g.method + " " + g.path + (g.text.empty() ? "" : " " + g.text),
        shown ? std::nullopt : std::optional(g.pass), gate_text(r, g));
  }
  for (const SelfCheck& c : r.checks) add("check", c.name, c.pass, c.detail);
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"oscar-verify\" tests=\"" +
         std::to_string(count) + "\" failures=\"" + std::to_string(failures) + "\" skipped=\"" +
         std::to_string(skipped) + "\">\n" + cases + "</testsuite>\n";
}

}  // namespace oscar
