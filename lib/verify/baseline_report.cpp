#include "verify/baseline_report.h"

#include "base/errors.h"

namespace oscar {
BaselineReport BaselineReport::load(const fs::path& file) {
  BaselineReport report;
  report.name_ = file.filename().string();
  try {
    report.json_ = read_json(file);
    const Json& j = report.json_;
    const int version = j.at("format_version").get<int>();
    if (version > kReportFormatVersion) {
      throw InputError(file.string() + " has report format " + std::to_string(version) + ", this program reads up to " +
                       std::to_string(kReportFormatVersion));
    }
    for (const Json& m : j.at("methods")) {
      (void)m.at("id").get<std::string>(), (void)m.at("path").get<std::string>();
      (void)m.at("comparison").get<std::string>();
      (void)m.at("kl").at("mean").get<double>(), (void)m.at("ppl_ratio").get<double>();
    }
    (void)j.at("model").at("fingerprint").get<std::string>(), (void)j.at("text").at("sha256").get<std::string>();
    const Json& scoring = j.at("scoring");
    for (const char* name : {"first_position", "sequences", "tokens"}) (void)scoring.at(name).get<std::int64_t>();
    (void)j.at("context").get<std::int64_t>(), (void)j.at("options").at("dtype").get<std::string>();
  } catch (const Json::exception&) {
    throw InputError(file.string() + " is no report of oscar-verify; --baseline takes the file written with --report");
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
                             const std::function<QualityMetrics(std::size_t)>& same_tokens) const {
  report.baseline = name_;
  report.baseline_tokens = json_["scoring"]["tokens"].get<std::int64_t>();
  for (std::size_t i = 0; i < report.methods.size(); ++i) {
    const MethodReport& m = report.methods[i];
    for (const Json& old : json_["methods"]) {
      if (!m.quantised || old["id"] != m.id || old["path"] != m.path || old["comparison"] != m.comparison) continue;
      const QualityMetrics now = same_tokens(i);
      BaselineChange c{m.id,         m.comparison,
                       m.path,       old["kl"]["mean"].get<double>(),
                       now.kl.mean,  old["ppl_ratio"].get<double>(),
                       now.ppl_ratio};
      report.changes.push_back(c);
      if (!max_kl_increase || !m.judged) continue;
      const double increase = c.kl_now - c.kl_before;
      GateResult gate{"max_kl_increase", m.id, m.path, *max_kl_increase, increase, increase <= *max_kl_increase};
      report.pass = report.pass && gate.pass;
      report.gates.push_back(gate);
    }
  }
  if (!max_kl_increase) return;
  bool measured = false;
  for (const GateResult& g : report.gates) measured = measured || g.name == "max_kl_increase";
  if (measured) return;  // else: the judged method is not in the earlier report, which fails
  for (const MethodReport& m : report.methods) {
    if (!m.judged) continue;
    report.gates.push_back({"max_kl_increase", m.id, m.path, *max_kl_increase, std::nullopt, false});
    report.pass = false;
  }
}

}  // namespace oscar
