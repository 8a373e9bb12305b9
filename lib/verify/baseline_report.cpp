#include "verify/baseline_report.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "verify/gates.h"

namespace oscar {
namespace {

// An integer in [least, most]; otherwise InputError.
std::int64_t integer(const Json& j, const char* name, std::int64_t least, std::int64_t most, const std::string& where) {
  const Json& found = j.at(name);
  if (!found.is_number_integer() || found < least || found > most) {
    throw InputError(where + ": \"" + name + "\" is " + printable(found.dump()) + ", expected a whole number from " +
                     std::to_string(least) + " to " + std::to_string(most) +
                     "; take the report as oscar-verify wrote it");
  }
  return found.get<std::int64_t>();
}

// Mean KL of each sequence; reports of older versions have none.
std::vector<double> kl_by_sequence(const Json& row) {
  const Json& kl = row.at("kl");
  return kl.contains("by_sequence") ? kl["by_sequence"].get<std::vector<double>>() : std::vector<double>{};
}

// Of the increase of the mean KL over sequences that both runs scored; empty where the earlier report has none.
std::optional<Interval> increase_interval(const std::vector<double>& before, const std::vector<double>& now,
                                          const BootstrapOptions& bootstrap) {
  if (before.size() != now.size()) return std::nullopt;
  std::vector<SequenceSum> differences;
  for (std::size_t s = 0; s < now.size(); ++s) differences.push_back({now[s] - before[s], 1});
  return bootstrap_mean(differences, bootstrap);
}

void check_figures(const Json& row, const std::string& where) {
  const double kl = row.at("kl").at("mean").get<double>(), ratio = row.at("ppl_ratio").get<double>();
  const std::vector<double> parts = kl_by_sequence(row);
  const bool sound =
      std::all_of(parts.begin(), parts.end(), [](double mean) { return std::isfinite(mean) && mean >= 0.0; });
  if (std::isfinite(kl) && kl >= 0.0 && std::isfinite(ratio) && ratio > 0.0 && sound) return;
  throw InputError(where + ": the row of " + printable(row.at("id").get<std::string>()) + " has mean KL " +
                   row["kl"]["mean"].dump() + " and perplexity ratio " + row["ppl_ratio"].dump() +
                   ", expected numbers not below zero; take the report as oscar-verify wrote it");
}

}  // namespace

BaselineReport BaselineReport::load(const fs::path& file) {
  BaselineReport report = parse(read_file(file), file.string());
  report.name_ = file.filename().string();
  return report;
}

BaselineReport BaselineReport::parse(std::string_view bytes, const std::string& where) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;  // products of two such numbers stay exact
  BaselineReport report;
  report.name_ = where;
  report.json_ = parse_json(bytes, where);
  const Json& j = report.json_;
  try {
    const std::int64_t version = integer(j, "format_version", 1, kMost, where);
    if (version > kReportFormatVersion) {
      throw InputError(where + " has report format " + std::to_string(version) + ", this program reads up to " +
                       std::to_string(kReportFormatVersion));
    }
    for (const Json& m : j.at("methods")) {
      (void)m.at("id").get<std::string>(), (void)m.at("path").get<std::string>();
      (void)m.at("comparison").get<std::string>();
      check_figures(m, where);
    }
    (void)j.at("model").at("fingerprint").get<std::string>(), (void)j.at("text").at("sha256").get<std::string>();
    const std::int64_t context = integer(j, "context", 1, kMost, where);
    const Json& scoring = j.at("scoring");
    integer(scoring, "first_position", 0, context, where);
    integer(scoring, "sequences", 0, kMost, where), integer(scoring, "tokens", 0, kMost * kMost / 2, where);
    (void)j.at("options").at("dtype").get<std::string>();
  } catch (const Json::exception&) {
    throw InputError(where + " is no report of oscar-verify; --baseline takes the file written with --report");
  }
  return report;
}

std::int64_t BaselineReport::first_position() const { return json_["scoring"]["first_position"].get<std::int64_t>(); }

std::int64_t BaselineReport::sequences() const { return json_["scoring"]["sequences"].get<std::int64_t>(); }

void BaselineReport::require_same(const ModelFacts& model, const TextFacts& text, const ScoringFacts& scoring,
                                  const std::string& dtype) const {
  const auto refuse = [&](const std::string& what) {
    throw InputError("the baseline " + name_ + " is of another " + what + "; compare reports of equal runs");
  };
  if (json_["model"]["fingerprint"] != model.fingerprint) refuse("model");
  if (json_["text"]["sha256"] != text.sha256) refuse("text");
  if (json_["context"] != scoring.context) {
    refuse("context (" + json_["context"].dump() + " tokens, and this run has " + std::to_string(scoring.context) +
           ")");
  }
  if (json_["options"]["dtype"] != dtype) refuse("precision (" + json_["options"]["dtype"].get<std::string>() + ")");
  const auto unscored = [&](const std::string& before, const std::string& now) {
    throw InputError("the baseline " + name_ + " scored " + before + ", and this run " + now +
                     ": without the same tokens nothing can be compared");
  };
  if (sequences() > scoring.sequences) {
    unscored(std::to_string(sequences()) + " sequences",
             "has " + std::to_string(scoring.sequences) + " (--max-sequences and --tokens choose them)");
  }
  if (first_position() < scoring.first_position) {
    unscored("positions from " + std::to_string(first_position()) + " on",
             "scores those from " + std::to_string(scoring.first_position) +
                 " on, where its methods with the longest windows have coded something (--methods, --windows and "
                 "--compare choose them)");
  }
  const std::int64_t tokens = sequences() * (scoring.context - 1 - first_position());
  if (json_["scoring"]["tokens"] != tokens) {
    unscored(json_["scoring"]["tokens"].dump() + " tokens", "has " + std::to_string(tokens) + " at their positions");
  }
}

void BaselineReport::compare(VerifyReport& report, std::optional<double> max_kl_increase,
                             const BootstrapOptions& bootstrap,
                             const std::function<QualityMetrics(std::size_t)>& same_tokens) const {
  report.baseline = name_;
  report.baseline_tokens = json_["scoring"]["tokens"].get<std::int64_t>();
  for (std::size_t i = 0; i < report.methods.size(); ++i) {
    const MethodReport& m = report.methods[i];
    for (const Json& old : json_["methods"]) {
      if (!m.quantized || old["id"] != m.id || old["path"] != m.path || old["comparison"] != m.comparison) continue;
      const QualityMetrics now = same_tokens(i);
      BaselineChange c{m.id,         m.comparison,
                       m.path,       old["kl"]["mean"].get<double>(),
                       now.kl.mean,  old["ppl_ratio"].get<double>(),
                       now.ppl_ratio};
      report.changes.push_back(c);
      if (!max_kl_increase || !m.evaluated) continue;
      const double increase = c.kl_now - c.kl_before;
      const std::vector<double> before = kl_by_sequence(old);
      GateResult gate =
          gate_by_interval(m, "max_kl_increase", *max_kl_increase, increase,
                           increase_interval(before, now.kl.by_sequence, bootstrap), sequences(), GateSide::kUpper);
      if (before.empty() && !gate.reason.empty()) {
        gate.reason = "the earlier report has no KL of each sequence: write it again with this version";
      }
      gate.decides = !m.beside;
      report.pass = report.pass && (gate.pass || m.beside);
      report.gates.push_back(gate);
    }
  }
  if (!max_kl_increase) return;
  for (const MethodReport& m : report.methods) {
    const bool compared = std::any_of(report.gates.begin(), report.gates.end(), [&](const GateResult& g) {
      return g.name == "max_kl_increase" && g.method == m.id && g.path == m.path;
    });
    if (!m.candidate() || compared) continue;
    GateResult gate{"max_kl_increase", m.id, m.path, *max_kl_increase, std::nullopt, false};
    gate.reason = "the earlier report has no such row: write it again with the bundles and the --path of this run";
    report.gates.push_back(std::move(gate));
    report.pass = false;
  }
}

}  // namespace oscar
